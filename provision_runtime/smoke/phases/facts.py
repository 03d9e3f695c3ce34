"""Phase facts: what this environment is, whether that is what was promised, and whether it is the same on every rank."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ...facts import environment
from ..checks import contamination, drift, expectation, surroundings
from ..outcome import Finding, Outcome, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..session import Session


def run(session: Session) -> Outcome:
    started = time.monotonic()
    with contamination.of_rank(session.options, session.place.rank):
        session.facts = environment.collect()
    if session.facts["error"]:
        contaminated = surroundings.contaminations(session.facts)
        return Outcome(
            "",
            (expectation.broken(session.facts["error"]), *contaminated),
            _data(session, started),
            broken=True,
        )
    _choose(session)
    unusable = _unusable(session)
    session.unusable = "; ".join(unusable)
    found = [
        *expectation.differences(session.facts, session.options, session.gpu),
        *surroundings.contaminations(session.facts),
        *surroundings.pitfalls(session.facts, session.place, os.environ),
        *(Finding("backend-unusable", message) for message in unusable),
    ]
    data = _data(session, started)
    return Outcome(_in_words(data), tuple(found), data)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """With what only shows between ranks. Two ranks on one GPU end the run: NCCL would fail or hang on them."""
    folded = fold(outcomes)
    rows = [row for outcome in outcomes for row in outcome.data["ranks"]]
    found = drift.findings(rows)
    data = {
        **folded.data,
        "collect_s": max(outcome.data["collect_s"] for outcome in outcomes),
        "ranks": rows,
    }
    is_shared = any(finding.id == "gpu-shared" for finding in found)
    return Outcome(folded.message, (*folded.findings, *found), data, folded.broken or is_shared)


def _choose(session: Session) -> None:
    """Backend and device as asked for, never quieter ones; auto is nccl where torch sees a GPU, and a GPU for nccl alone."""
    torch, options = session.facts["torch"], session.options
    session.backend = options.backend
    if options.backend == "auto":
        session.backend = "nccl" if torch["cuda_available"] and options.device != "cpu" else "gloo"
    on_gpu = options.device == "cuda" or (options.device == "auto" and session.backend == "nccl")
    session.device = f"cuda:{_gpu_index(session)}" if on_gpu else "cpu"


def _gpu_index(session: Session) -> int:
    """A launcher may show every rank its own GPU alone, which is then the first. Over Gloo ranks may share the GPUs."""
    count, local_rank = session.facts["torch"]["device_count"], session.place.local_rank
    return (
        0
        if count == 1
        else local_rank % count
        if session.backend == "gloo" and count
        else local_rank
    )


def _unusable(session: Session) -> list[str]:
    """Why the chosen backend and device cannot work here."""
    torch = session.facts["torch"]
    found = [] if torch["distributed"] else ["this torch was built without torch.distributed"]
    if session.backend == "nccl" and not session.on_gpu:
        found.append("NCCL needs tensors on a GPU, but --device cpu was asked for")
    # With one GPU for two ranks nothing is said here: whether each rank has its own shows when they compare.
    if session.gpu is not None and session.gpu >= torch["device_count"]:
        what = "NCCL" if session.backend == "nccl" else "--device cuda"
        found.append(
            f"{what} needs a GPU for local rank {session.place.local_rank}; torch sees {torch['device_count']}"
        )
    return found


def _data(session: Session, started: float) -> dict[str, Any]:
    """What the report keeps: this rank's environment, its settings, and in `ranks` a row for every rank."""
    row = contamination.falsified(_row(session), session.options, session.place.rank)
    kept = ("python", "torch", "cuda", "nccl", "lock_hash", "backend", "gpu")
    return {
        **{name: row[name] for name in kept},
        "rehearsal": bool(session.facts["torch"])
        and expectation.is_rehearsal(session.facts, session.options),
        "settings": session.facts["nccl_settings"],
        "collect_s": round(time.monotonic() - started, 3),
        "ranks": [row],
    }


def _row(session: Session) -> dict[str, Any]:
    """One rank in plain values, few enough that those of a hundred ranks make a table."""
    found, place = session.facts, session.place
    torch = found["torch"] or {}
    gpu = _gpu(session)
    shm = found["limits"]["shm"] or {}
    nccl = torch.get("nccl", {})
    return {
        "rank": place.rank,
        "host": place.host,
        "python": found["python"]["version"],
        "torch": torch.get("version"),
        "cuda": torch.get("cuda"),
        "nccl": expectation.nccl_version(torch) if torch else None,
        "nccl_compiled": nccl.get("compiled"),
        "nccl_file": nccl.get("file"),
        "driver": found["driver"],
        "backend": session.backend,
        "device": session.device,
        "gpu": gpu.get("uuid"),
        "gpu_name": gpu.get("name"),
        "architecture": gpu.get("architecture"),
        "gpus_visible": torch.get("device_count"),
        "lock_hash": found["lock_hash"],
        "cpus": found["limits"]["cpus"]["allowed"],
        "cpu_count": found["limits"]["cpus"]["count"],
        "omp_num_threads": found["environment"].get("OMP_NUM_THREADS"),
        "shm_bytes": shm.get("bytes"),
        "shm_free_bytes": shm.get("free_bytes"),
        "shm_device": shm.get("device"),
    }


def _gpu(session: Session) -> dict[str, Any]:
    devices = session.facts["torch"]["devices"] if session.on_gpu else []
    return next((one for one in devices if one["index"] == session.gpu), {})


def _in_words(data: dict[str, Any]) -> str:
    cuda = f"CUDA {data['cuda']}, NCCL {data['nccl']}" if data["cuda"] else "CPU build"
    where = (
        " (rehearsal on Gloo/CPU: no GPU here)" if data["rehearsal"] else f" on {data['backend']}"
    )
    return f"torch {data['torch']}, {cuda}, Python {data['python']}{where}"
