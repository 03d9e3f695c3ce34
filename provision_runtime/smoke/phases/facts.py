"""Phase facts: what this environment is, whether it is what was promised, and whether it is the same
on every rank."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ...facts import environment
from ..checks import contamination, drift, expectation, surroundings
from ..outcome import Finding, Outcome, combine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..context import RankContext

# Of this rank's row, what the report also has at the top of the phase's data.
SUMMARY_KEYS = ("python", "torch", "cuda", "nccl", "lock_hash", "backend", "gpu")


def run(context: RankContext) -> Outcome:
    started = time.monotonic()
    with contamination.of_rank(context.options, context.env.rank):
        context.facts = environment.collect()
    if context.facts["error"]:
        findings = [
            expectation.broken(context.facts["error"]),
            *surroundings.contaminations(context.facts),
        ]
        return Outcome("", tuple(findings), _data(context, started), broken=True)
    _choose_backend(context)
    problems = _backend_problems(context)
    context.unusable = "; ".join(problems)
    findings = [
        *expectation.differences(context.facts, context.options, context.gpu),
        *surroundings.contaminations(context.facts),
        *surroundings.pitfalls(context.facts, context.env, os.environ),
        *(Finding("backend-unusable", problem) for problem in problems),
    ]
    data = _data(context, started)
    return Outcome(_summary(data), tuple(findings), data)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Adds what shows only between ranks. Two ranks on one GPU end the run: NCCL would fail or
    hang."""
    combined = combine(outcomes)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        rows.extend(outcome.data["ranks"])
    findings = drift.findings(rows)
    data = {
        **combined.data,
        "collect_s": max(outcome.data["collect_s"] for outcome in outcomes),
        "ranks": rows,
    }
    is_gpu_shared = any(finding.id == "gpu-shared" for finding in findings)
    return Outcome(
        combined.message,
        (*combined.findings, *findings),
        data,
        combined.broken or is_gpu_shared,
    )


def _choose_backend(context: RankContext) -> None:
    """Backend and device as requested, without silent fallback. auto is nccl if torch sees a GPU;
    the device is a GPU only with nccl."""
    torch, options = context.facts["torch"], context.options
    context.backend = options.backend
    if options.backend == "auto":
        context.backend = "nccl" if torch["cuda_available"] and options.device != "cpu" else "gloo"
    context.device = "cpu"
    if options.device == "cuda" or (options.device == "auto" and context.backend == "nccl"):
        context.device = f"cuda:{_gpu_index(context)}"


def _gpu_index(context: RankContext) -> int:
    """A launcher may show each rank only its own GPU, which is then the first. With Gloo, ranks may
    share GPUs."""
    count, local_rank = context.facts["torch"]["device_count"], context.env.local_rank
    if count == 1:
        return 0
    if context.backend == "gloo" and count:
        return int(local_rank % count)
    return local_rank


def _backend_problems(context: RankContext) -> list[str]:
    """Why the chosen backend and device cannot work here."""
    torch = context.facts["torch"]
    problems = []
    if not torch["distributed"]:
        problems.append("this torch was built without torch.distributed")
    if context.backend == "nccl" and not context.on_gpu:
        problems.append("NCCL needs tensors on a GPU, but --device is cpu")
    # One GPU for two ranks is no problem yet: whether each rank has its own shows when they compare.
    if context.gpu is not None and context.gpu >= torch["device_count"]:
        name = "NCCL" if context.backend == "nccl" else "--device cuda"
        problems.append(
            f"{name} needs a GPU for local rank {context.env.local_rank}; "
            f"torch sees {torch['device_count']}"
        )
    return problems


def _data(context: RankContext, started: float) -> dict[str, Any]:
    """For the report: this rank's environment and settings, and in `ranks` its row."""
    row = contamination.falsified(_row(context), context.options, context.env.rank)
    torch = context.facts["torch"]
    return {
        **{key: row[key] for key in SUMMARY_KEYS},
        "rehearsal": bool(torch) and expectation.is_rehearsal(context.facts, context.options),
        "settings": context.facts["nccl_settings"],
        "collect_s": round(time.monotonic() - started, 3),
        "ranks": [row],
    }


def _row(context: RankContext) -> dict[str, Any]:
    """One rank in plain values, few enough that those of a hundred ranks make a table."""
    facts, env = context.facts, context.env
    torch = facts["torch"] or {}
    shm = facts["limits"]["shm"] or {}
    nccl = torch.get("nccl", {})
    gpu: dict[str, Any] = {}
    if context.on_gpu:
        for device in torch["devices"]:
            if device["index"] == context.gpu:
                gpu = device
    return {
        "rank": env.rank,
        "host": env.host,
        "python": facts["python"]["version"],
        "torch": torch.get("version"),
        "cuda": torch.get("cuda"),
        "nccl": expectation.nccl_version(torch) if torch else None,
        "nccl_compiled": nccl.get("compiled"),
        "nccl_file": nccl.get("file"),
        "driver": facts["driver"],
        "backend": context.backend,
        "device": context.device,
        "gpu": gpu.get("uuid"),
        "gpu_name": gpu.get("name"),
        "architecture": gpu.get("architecture"),
        "gpus_visible": torch.get("device_count"),
        "lock_hash": facts["lock_hash"],
        "cpus": facts["limits"]["cpus"]["allowed"],
        "cpu_count": facts["limits"]["cpus"]["count"],
        "omp_num_threads": facts["environment"].get("OMP_NUM_THREADS"),
        "shm_bytes": shm.get("bytes"),
        "shm_free_bytes": shm.get("free_bytes"),
        "shm_device": shm.get("device"),
    }


def _summary(data: dict[str, Any]) -> str:
    build = f"CUDA {data['cuda']}, NCCL {data['nccl']}" if data["cuda"] else "CPU build"
    text = f"torch {data['torch']}, {build}, Python {data['python']}"
    if data["rehearsal"]:
        return f"{text} (rehearsal on Gloo/CPU: no GPU here)"
    return f"{text} on {data['backend']}"
