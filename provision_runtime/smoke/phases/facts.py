"""Phase facts: is this environment the expected one, and the same on every rank?"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...checks import expectation, surroundings
from ...comm.rank_names import name_ranks
from ...facts import environment
from .. import distribution_drift, fault_injection
from ..outcome import Finding, Outcome, combine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..context import RankContext
    from ..options import Options

# The columns of this rank's row that the report repeats at the top of the phase's data.
SUMMARY_KEYS = ("python", "torch", "cuda", "nccl", "lock_hash", "backend", "gpu")
# What must be the same on all ranks: otherwise they have different environments.
COMPARED = ("python", "torch", "cuda", "nccl", "driver", "lock_hash", "backend")


def run(context: RankContext) -> Outcome:
    started = time.monotonic()
    with fault_injection.environment_faults(context.options, context.env.rank):
        facts = environment.collect()
    context.facts = dict(facts)
    if facts["error"]:
        findings = [expectation.broken(facts["error"]), *surroundings.contaminations(facts)]
        return Outcome("", tuple(findings), _data(context, started), broken=True)
    _choose_backend(context)
    problems = _backend_problems(context)
    context.unusable = "; ".join(problems)
    findings = [
        *expectation.differences(facts, expected_by(context.options), context.gpu),
        *surroundings.contaminations(facts),
        *surroundings.pitfalls(
            facts,
            os.environ,
            world_size=context.env.world_size,
            local_ranks=context.env.local_world_size or 1,
            is_launched=context.env.launched,
        ),
        *(Finding("backend-unusable", problem) for problem in problems),
    ]
    data = _data(context, started)
    # Several worlds of one would all succeed, at the same files and ports.
    is_other_world = any(finding.id == "world-size" for finding in findings)
    return Outcome(_summary(data), tuple(findings), data, broken=is_other_world)


def expected_by(options: Options) -> expectation.Expectation:
    return expectation.Expectation(
        torch=options.expect_torch,
        cuda=options.expect_cuda,
        nccl=options.expect_nccl,
        requires_gpu=options.require_gpu,
    )


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Adds the differences between ranks. Two ranks on one GPU end the run: NCCL would fail or
    hang."""
    combined = combine(outcomes)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        rows.extend(outcome.data["ranks"])
    findings = differences_between_ranks(rows)
    # A digest for each distribution of each host would make most of the report.
    rows = [{key: value for key, value in row.items() if key != "installed"} for row in rows]
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
        count, index = torch["device_count"], context.env.local_rank
        if count == 1:
            # The launcher may make only its own GPU visible to each rank, as the first one.
            index = 0
        elif count and context.backend == "gloo":
            # With Gloo, ranks may share GPUs.
            index %= count
        context.device = f"cuda:{index}"


def _backend_problems(context: RankContext) -> list[str]:
    """Why the chosen backend and device cannot work here."""
    torch = context.facts["torch"]
    problems = []
    if not torch["distributed"]:
        problems.append("this torch was built without torch.distributed")
    if context.backend == "nccl" and not context.on_gpu:
        problems.append("NCCL needs tensors on a GPU, but the setting device is cpu")
    # Two ranks on one GPU are found later, when the ranks are compared.
    if context.gpu is not None and context.gpu >= torch["device_count"]:
        name = "NCCL" if context.backend == "nccl" else "the setting device=cuda"
        problems.append(
            f"{name} needs a GPU for local rank {context.env.local_rank}; "
            f"torch sees {torch['device_count']}"
        )
    return problems


def _data(context: RankContext, started: float) -> dict[str, Any]:
    """For the report: this rank's environment and settings, and in `ranks` its row."""
    row = fault_injection.falsified_row(_row(context), context.options, context.env.rank)
    torch = context.facts["torch"]
    return {
        **{key: row[key] for key in SUMMARY_KEYS},
        "rehearsal": bool(torch) and expectation.is_rehearsal(torch, context.options.expect_cuda),
        "settings": context.facts["nccl_settings"],
        "collect_s": round(time.monotonic() - started, 3),
        "ranks": [row],
    }


def _row(context: RankContext) -> dict[str, Any]:
    """One rank in plain values, few enough for a table of a hundred ranks."""
    facts, env = context.facts, context.env
    torch: Any = facts["torch"] or {}
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
        "installed": distribution_drift.collect(env),
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


# How the ranks compare. Every rank reports one row of plain values; a rank is named for a value
# that most ranks do not have. Without a majority all ranks are named, since any may be wrong.


def differences_between_ranks(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Findings from comparing the ranks; rows are in rank order."""
    result = []
    for name in COMPARED:
        result += _differing_values("environment-drift", name, rows)
    result += distribution_drift.differences(rows)
    result += shared_gpus(rows)
    result += mixed_gpus(rows)
    result += shared_memory(rows)
    return result


def mixed_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return _differing_values("gpu-mixed", "gpu_name", [row for row in rows if row["gpu_name"]])


def shared_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """NCCL refuses two ranks on one GPU; with Gloo they may share it."""
    ranks_by_gpu: dict[str, list[int]] = {}
    for row in rows:
        if row["gpu"] is not None and row["backend"] == "nccl":
            ranks_by_gpu.setdefault(row["gpu"], []).append(row["rank"])
    result = []
    for uuid, ranks in ranks_by_gpu.items():
        if len(ranks) > 1:
            message = f"{len(ranks)} ranks are on one GPU ({uuid})"
            result.append(Finding("gpu-shared", message, tuple(ranks)))
    return result


def shared_memory(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Is each /dev/shm large enough for the ranks that use it? Two containers on one host have one
    each."""
    users: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        users.setdefault((row["host"], row["shm_device"]), []).append(row)
    result = []
    for sharing_rows in users.values():
        ranks = tuple(row["rank"] for row in sharing_rows)
        first = sharing_rows[0]
        finding = surroundings.shared_memory_finding(
            first["shm_bytes"], first["shm_free_bytes"], len(ranks)
        )
        if finding is not None:
            result.append(replace(finding, ranks=ranks))
    return result


def _differing_values(
    finding_id: str, name: str, rows: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """One finding for each value that differs from the majority's; one about all ranks if there is
    no majority."""
    ranks_by_value: dict[Any, list[int]] = {}
    for row in rows:
        ranks_by_value.setdefault(row[name], []).append(row["rank"])
    if len(ranks_by_value) < 2:
        return []
    texts = {}
    for value, ranks in ranks_by_value.items():
        texts[value] = f"{'absent' if value is None else value} on {name_ranks(ranks)}"
    majority = max(ranks_by_value, key=lambda value: len(ranks_by_value[value]))
    if len(ranks_by_value[majority]) * 2 <= len(rows):
        message = f"{name} is {', '.join(texts.values())}"
        return [Finding(finding_id, message, tuple(row["rank"] for row in rows))]
    result = []
    for value, ranks in ranks_by_value.items():
        if value != majority:
            message = f"{name} is {texts[value]}, but {texts[majority]}"
            result.append(Finding(finding_id, message, tuple(ranks)))
    return result
