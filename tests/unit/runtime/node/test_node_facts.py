"""What the facts of a node say: about GPUs, kernels, stores and facts that do not come."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.node import errors, facts, install_methods
from provision_runtime.node.errors import of_system_error
from tests.node_stores import refused
from tests.paths import DATA
from tests.programs import write_program


def test_devices_of_nvidia_smi() -> None:
    text = (
        "NVIDIA A100-SXM4-80GB, GPU-11111111-2222-3333-4444-555555555555, 550.54.15\n"
        "NVIDIA A100-SXM4-80GB, GPU-66666666-2222-3333-4444-555555555555, 550.54.15\n"
        "WARNING: infoROM is corrupted at gpu 0000:0F:00.0\n"
    )
    assert facts.parse_devices(text) == (["NVIDIA A100-SXM4-80GB"] * 2, "550.54.15")


@pytest.mark.parametrize("name", sorted(path.name for path in (DATA / "nvidia-smi").iterdir()))
def test_other_outputs_of_nvidia_smi_are_no_devices(name: str) -> None:
    assert facts.parse_devices((DATA / "nvidia-smi" / name).read_text()) == ([], None)


def fake_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    write_program(program, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_driver_that_does_not_work_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "Failed to initialize NVML: Driver/library version mismatch"
    fake_nvidia_smi(tmp_path, f"echo '{message}'; exit 18", monkeypatch)
    reply = facts.gpus()
    assert reply["problem"] == message
    assert reply["devices"] == []


def test_gpus_are_listed_with_one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "NVIDIA H100 80GB HBM3, GPU-{}, 550.54.15"
    fake_nvidia_smi(tmp_path, f"echo '{row.format(1)}'; echo '{row.format(2)}'", monkeypatch)
    reply = facts.gpus()
    assert reply["driver"] == "550.54.15"
    assert reply["devices"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert reply["problem"] is None


def test_late_and_failed_facts_are_unread_and_the_others_are_reported() -> None:
    forever = threading.Event()

    def fail() -> Any:
        raise PermissionError(13, "Permission denied", "/x")

    def mistake() -> Any:
        facts: dict[str, str] = {}
        return facts["serial"]

    readers: dict[str, Callable[[], Any]] = {
        "kernel": lambda: "6.1",
        "store": forever.wait,
        "gpus": fail,
        "host": mistake,
    }
    values, unread = facts.read_within(readers, 0.05)
    forever.set()
    assert values == {"kernel": "6.1"}
    assert sorted(unread) == ["gpus", "host", "store"]
    assert unread["host"] == "KeyError: 'serial'"
    assert "no answer" in unread["store"]
    assert "/x" in unread["gpus"]


MINE = {"readers": "me"}


def test_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    reply = facts.store(str(tmp_path / "a" / "b"), MINE)
    assert reply["existing"] == str(tmp_path)
    assert reply["problem"] is None
    assert reply["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def problem_of(path: str, rules: Mapping[str, str] = MINE) -> tuple[str, str]:
    problem = facts.store(path, rules)["problem"]
    return (problem["reason"], problem["message"]) if problem else ("", "")


def test_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with refused("no-such-path"):
        facts.store(str(tmp_path / "store"), MINE)


def test_store_where_nobody_can_write() -> None:
    assert problem_of("/proc/provision")[0] == "no-such-path"


def test_store_that_every_user_may_write_to(tmp_path: Path) -> None:
    """Said when nodes are checked, not when the first bytes arrive."""
    tmp_path.chmod(0o777)
    reason, message = problem_of(str(tmp_path))
    assert reason == "unsafe-store" and "mode 777" in message
    # One that is made there belongs to us, and in a sticky folder nobody else may replace it.
    assert problem_of(str(tmp_path / "store"))[0] == "unsafe-store"
    tmp_path.chmod(0o1777)
    assert problem_of(str(tmp_path / "store"))[0] == ""


@pytest.mark.root
def test_store_that_other_users_cannot_reach(tmp_path: Path) -> None:
    """Such as pytest's folders: root ships for all unless nodes.yml says otherwise."""
    path = str(tmp_path / "store")
    for readers in ("", "all", "group:users"):
        assert problem_of(path, {"readers": readers})[0] == "not-readable"
    assert problem_of(path)[0] == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_store_where_this_user_cannot_write() -> None:
    assert problem_of("/usr")[0] == "permission-denied"


@pytest.mark.parametrize(
    ("capabilities", "expected"), [("000001ffffffffff", True), ("0" * 16, False)]
)
def test_right_to_mount(capabilities: str, expected: bool, tmp_path: Path) -> None:
    """Root in a container has not got it."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tsh\nCapEff:\t{capabilities}\n")
    assert install_methods.may_mount(tmp_path) is expected


@pytest.mark.parametrize(("number", "reason"), sorted(errors.REASONS.items()))
def test_system_errors_have_reasons(number: int, reason: str) -> None:
    error = of_system_error(OSError(number, os.strerror(number), "/nowhere/x"))
    assert error.reason == reason
    assert error.message == f"/nowhere/x: {os.strerror(number)}"


def test_other_system_errors() -> None:
    assert of_system_error(OSError("odd")).reason == "system-error"
