"""Parts that tests need: those that PROVISION_REQUIRE promises, those that marks name, and room for sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.waiting import eventually

SKIPPING = """
import pytest

def test_in_the_body():
    pytest.skip("mounting needs root")

@pytest.mark.skipif(True, reason="no loop devices")
def test_by_a_mark():
    pass

def test_of_a_gpu():
    pytest.skip("this machine has no NVIDIA driver")

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail():
    assert False
"""


COMMANDS = """
import subprocess
import pytest

def test_without_a_mark():
    subprocess.run(["id"], check=True)

@pytest.mark.needs("id")
def test_with_a_mark():
    subprocess.run(["id"], check=True)

def test_of_what_every_machine_has():
    subprocess.run(["true"], check=True)
"""
SOCKET = """
import socket, tempfile

def test_socket(tmp_path):
    assert "a long folder" in str(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(tempfile.mktemp())
"""


def run_tests(folder: Path, required: str = "", text: str = SKIPPING, **variables: str) -> str:
    (folder / "test_it.py").write_text(text)
    options = ["-c", os.devnull, "-p", "tests.conftest", "-p", "no:cacheprovider", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PROVISION_REQUIRE": required, **variables},
        capture_output=True,
        text=True,
    )
    return result.stdout


@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", "3 skipped, 1 xfailed"), ("docker,all", "1 failed, 1 skipped, 1 xfailed, 1 error")],
)
def test_all_turns_skips_into_failures(tmp_path: Path, required: str, outcome: str) -> None:
    printed = run_tests(tmp_path, required)
    assert outcome in printed
    if "all" in required:
        assert "PROVISION_REQUIRE demands all parts, but: Skipped: mounting needs root" in printed
        assert "no loop devices" in printed


def test_commands_have_marks_and_sockets_have_room(tmp_path: Path) -> None:
    """Where the folder for temporary files, which nox sets, has a long path with a space."""
    folder = tmp_path / ("a long folder " + "x" * 100)
    folder.mkdir()
    folders = {"TMPDIR": str(folder), "PYTEST_DEBUG_TEMPROOT": str(folder)}
    printed = run_tests(tmp_path, text=COMMANDS + SOCKET, PROVISION_TEST_MARKS="1", **folders)
    assert "1 failed, 3 passed" in printed
    assert "It runs id, which a machine may lack" in printed


def test_a_daemon_that_dies_ends_the_wait_for_it() -> None:
    daemon = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="ended with status 3:\nits log"):
        eventually(lambda: False, explain=lambda: "its log", daemons=[daemon])
