"""nvidia-smi's answers, the ugly ones too: never a guess, and a reason where nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core import host
from provision.core.types import Machine

ANSWERS = Path(__file__).parent.parent / "data" / "nvidia-smi"
KNOWN = {
    "one": Machine(driver="550.90.07", gpus=("sm_90",)),
    "mixed": Machine(driver="535.183.01", gpus=("sm_70", "sm_80")),
    "old-driver": Machine(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
    "not-available": Machine(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
}
REASONS = {
    "unknown-field": "not a valid field",
    "no-devices": "No devices were found",
    "no-driver": "couldn't communicate with the NVIDIA driver",
    "mismatch": "version mismatch",
    "empty": "it printed: nothing",
}


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    host.this_machine.cache_clear()
    yield
    host.this_machine.cache_clear()


def test_every_recorded_output_has_an_expectation() -> None:
    assert {path.stem for path in ANSWERS.glob("*.txt")} == KNOWN.keys() | REASONS.keys()


@pytest.mark.parametrize("answer", KNOWN)
def test_nvidia_smi_output_is_parsed(answer: str) -> None:
    assert host.parse_nvidia_smi((ANSWERS / f"{answer}.txt").read_text()) == KNOWN[answer]


@pytest.mark.parametrize("answer", REASONS)
def test_missing_values_have_a_reason(answer: str) -> None:
    result = host.parse_nvidia_smi((ANSWERS / f"{answer}.txt").read_text())
    assert (result.driver, result.gpus) == (None, ())
    assert REASONS[answer] in result.why


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program named nvidia-smi, the only one that can be found."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_old_driver_is_queried_with_its_field_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = 'echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2'
    old = f'case "$*" in *compute_cap*) {refusal};; *) echo "470.57.02, Tesla K80";; esac'
    install(tmp_path, monkeypatch, old)
    assert host.this_machine() == Machine(driver="470.57.02", gpus=("Tesla K80",))


def test_nvidia_smi_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path, monkeypatch, f'echo x >> "{tmp_path}/asked"; echo "550.54.15, 8.0, NVIDIA A100"'
    )
    assert host.this_machine() is host.this_machine()
    assert (tmp_path / "asked").read_text() == "x\n"


def test_missing_nvidia_smi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.this_machine() == Machine(why="there is no nvidia-smi on this machine")


def test_hanging_nvidia_smi_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "while :; do :; done")
    monkeypatch.setattr(host, "ANSWER_TIMEOUT_S", 0.2)
    assert "did not answer within" in host.this_machine().why


def test_failing_nvidia_smi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 'echo "Failed to initialize NVML: Unknown Error" >&2; exit 255')
    assert "Unknown Error" in host.this_machine().why
