"""What `nox -s gpu` writes, from the report of a smoke test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import gpu_evidence

REPORT: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "smoke-report.json").read_text())
RUN = {
    "name": "smoke test, quick",
    "verdict": "pass",
    "passed": True,
    "duration_s": 31.2,
    "phases": [{"name": "facts", "findings": ["persistence-off"]}],
    "bandwidths": [
        {"bytes": 8, "busbw_gb_s": 0.1, "judged": "size too small to judge"},
        {"bytes": 512 << 20, "busbw_gb_s": 450.3, "judged": "fine"},
    ],
}
DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "commit": "abc",
    "gpus": ["NVIDIA H200"] * 8,
    "driver": "580.95.05",
    "torch": "2.9.1+cu130",
    "nccl": "2.27.7",
    "runs": [RUN, {"name": "tests marked gpu", "verdict": "pass", "duration_s": 60.0, "tests": 9}],
}


def test_the_page_of_no_evidence_says_so(tmp_path: Path) -> None:
    assert gpu_evidence.page(tmp_path).endswith(gpu_evidence.NONE_YET + "\n")


def test_the_page_has_each_run_and_the_largest_bandwidth(tmp_path: Path) -> None:
    name = gpu_evidence.hardware_name(DOCUMENT["gpus"])
    assert name == "8x-nvidia-h200"
    (tmp_path / f"{name}.json").write_text(json.dumps(DOCUMENT))
    page = gpu_evidence.page(tmp_path)
    assert "## 8 x NVIDIA H200" in page
    assert "| smoke test, quick | pass | 31.2 | persistence-off |" in page
    assert "| tests marked gpu | pass | 60 | 9 tests |" in page
    assert "all_reduce of 512 MiB in float32: busbw 450.3 GB/s (fine)." in page


def test_bandwidths_come_from_the_report() -> None:
    lines = gpu_evidence.bandwidths(REPORT)
    assert lines
    assert all(set(line) == {"bytes", "busbw_gb_s", "judged"} for line in lines)


def test_a_machine_without_a_driver_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_evidence, "DEVICE", tmp_path / "absent")
    for arguments in ([], ["--driver"]):
        assert gpu_evidence.main(arguments) == 2
        assert "so nothing was run" in capsys.readouterr().err
    monkeypatch.setattr(gpu_evidence, "DEVICE", tmp_path)
    assert gpu_evidence.main(["--driver"]) == 0


def test_the_committed_page_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_evidence.main(["--check"]) == 0, capsys.readouterr().out
