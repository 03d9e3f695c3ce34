"""PROVISION_REQUIRE: a test that cannot run fails where its part was promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

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


def run_tests(folder: Path, required: str) -> str:
    (folder / "test_it.py").write_text(SKIPPING)
    options = ["-c", os.devnull, "-p", "tests.conftest", "-p", "no:cacheprovider", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PROVISION_REQUIRE": required},
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
