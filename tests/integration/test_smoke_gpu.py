"""What one GPU is enough for: all phases over NCCL with one rank, and over Gloo with two ranks that share it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.report import model
from provision_runtime.smoke import bandwidth, options
from tests.integration.smoke_process import smoke

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@pytest.mark.parametrize(
    ("backend", "ranks", "judged"),
    [("nccl", 1, {bandwidth.ONE_RANK}), ("gloo", 2, {bandwidth.THROUGH_THE_HOST})],
    ids=["nccl", "gloo"],
)
def test_every_phase_passes_on_one_gpu(
    tmp_path: Path, backend: str, ranks: int, judged: set[str]
) -> None:
    run = smoke(tmp_path, "--backend", backend, "--device", "cuda", "--ranks", str(ranks))
    assert (run.status, run.findings) == (0, set()), run.lines
    assert {name: phase.verdict for name, phase in run.phases.items()} == dict.fromkeys(
        options.PHASES, model.PASS
    )
    assert (run.report.backend, run.report.device, run.report.world_size) == (
        backend,
        "cuda:0",
        ranks,
    )
    assert [row["device"] for row in run.phases["facts"].data["ranks"]] == ["cuda:0"] * ranks
    rows = run.phases["collectives"].data["rows"]
    assert {row["collective"] for row in rows} == {"all_reduce"}
    assert {row["judged"] for row in rows} == judged
    assert {row["busbw_gb_s"] is None for row in rows} == {ranks == 1}
    assert all(row["wrong"] == 0 for row in rows)
