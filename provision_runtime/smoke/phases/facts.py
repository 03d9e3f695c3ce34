"""Phase facts: is this environment the expected one, and the same on every rank?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ...checks import expectation, surroundings
from ...comm.rank_names import name_ranks
from ...dataclass import frozen
from ...facts import environment, limits
from ..context import RankContext
from ..fault_injection import OTHER_TORCH
from ..options import Options
from ..outcome import Finding, Outcome, combine, grouped, majority

# The columns of this rank's row that the report repeats at the top of the phase's data.
SUMMARY_KEYS = ("python", "torch", "cuda", "nccl", "lock_hash", "backend", "gpu")
# What must be the same on all ranks: otherwise they have different environments.
COMPARED = ("python", "torch", "cuda", "nccl", "driver", "lock_hash", "backend")


@frozen
class RankFacts:
    """One rank in plain values, few enough for a table of a hundred ranks."""

    rank: int
    host: str
    python: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    nccl_file: str | None
    driver: str | None
    backend: str
    device: str
    gpu: str | None
    gpu_name: str | None
    architecture: str | None
    lock_hash: str | None
    cpus: float
    shm_bytes: int | None
    shm_free_bytes: int | None
    shm_device: int | None


def run(context: RankContext) -> Outcome:
    facts = environment.collect()
    context.facts = dict(facts)
    if facts["error"]:
        findings = [expectation.broken(facts["error"]), *surroundings.contaminations(facts)]
        return Outcome("", tuple(findings), _data(context), broken=True)
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
    try:
        tempfile.gettempdir()  # tries to write, as DataLoaders will
    except FileNotFoundError:
        folders = dict.fromkeys(limits.temporary_folders(os.environ), False)
        findings += filter(None, [surroundings.temporary_folder_finding(folders)])
    data = _data(context)
    # Several worlds of one would all succeed, at the same files and ports.
    is_other_world = any(finding.id == "world-size" for finding in findings)
    build = f"CUDA {data['cuda']}, NCCL {data['nccl']}" if data["cuda"] else "CPU build"
    end = " (rehearsal on Gloo/CPU: no GPU here)" if data["rehearsal"] else f" on {data['backend']}"
    message = f"torch {data['torch']}, {build}, Python {data['python']}{end}"
    return Outcome(message, tuple(findings), data, broken=is_other_world)


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
    rows = [row for outcome in outcomes for row in outcome.data["ranks"]]
    findings = differences_between_ranks([RankFacts(**row) for row in rows])
    is_broken = combined.broken or any(finding.id == "gpu-shared" for finding in findings)
    data = {**combined.data, "ranks": rows}
    return Outcome(combined.message, (*combined.findings, *findings), data, is_broken)


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
    torch = context.facts["torch"]
    problems, count = [], torch["device_count"]
    if not torch["distributed"]:
        problems.append("this torch was built without torch.distributed")
    if context.backend == "nccl" and not context.on_gpu:
        problems.append("NCCL needs tensors on a GPU, but the setting device is cpu")
    # Two ranks on one GPU are found later, when the ranks are compared.
    if context.gpu is not None and context.gpu >= count:
        name = "NCCL" if context.backend == "nccl" else "the setting device=cuda"
        problems.append(
            f"{name} needs a GPU for local rank {context.env.local_rank}; torch sees {count}"
        )
    return problems


def _data(context: RankContext) -> dict[str, Any]:
    """For the report: this rank's environment and settings, and in `ranks` its row."""
    row = asdict(_rank_facts(context))
    if context.options.fault("other-torch", context.env.rank):
        row["torch"] = OTHER_TORCH
    torch = context.facts["torch"]
    return {
        **{key: row[key] for key in SUMMARY_KEYS},
        "rehearsal": bool(torch) and expectation.is_rehearsal(torch, context.options.expect_cuda),
        "settings": context.facts["nccl_settings"],
        "ranks": [row],
    }


def _rank_facts(context: RankContext) -> RankFacts:
    facts, env = context.facts, context.env
    torch: Any = facts["torch"] or {}
    limits = facts["limits"]
    shm = limits["shm"] or {}
    devices = torch.get("devices", ())
    gpu: Any = next((device for device in devices if device["index"] == context.gpu), {})
    return RankFacts(
        rank=env.rank,
        host=env.host,
        python=facts["python"]["version"],
        torch=torch.get("version"),
        cuda=torch.get("cuda"),
        nccl=expectation.nccl_version(torch) if torch else None,
        nccl_file=torch.get("nccl", {}).get("file"),
        driver=facts["driver"],
        backend=context.backend,
        device=context.device,
        gpu=gpu.get("uuid"),
        gpu_name=gpu.get("name"),
        architecture=gpu.get("architecture"),
        lock_hash=facts["lock_hash"],
        cpus=limits["cpus"]["allowed"],
        shm_bytes=shm.get("bytes"),
        shm_free_bytes=shm.get("free_bytes"),
        shm_device=shm.get("device"),
    )


# How the ranks compare. A rank is named for a value that most ranks do not have. Without a majority
# all ranks are named, since any may be wrong.


def differences_between_ranks(ranks: Sequence[RankFacts]) -> list[Finding]:
    findings = []
    for name in COMPARED:
        findings += _differing_values("environment-drift", name, ranks)
    # NCCL refuses two ranks on one GPU; with Gloo they may share it.
    ranks_by_gpu = grouped(
        (rank.gpu, rank.rank) for rank in ranks if rank.gpu and rank.backend == "nccl"
    )
    for uuid, sharing in ranks_by_gpu.items():
        if len(sharing) > 1:
            message = f"{len(sharing)} ranks are on one GPU ({uuid})"
            findings.append(Finding("gpu-shared", message, tuple(sharing)))
    findings += _differing_values(
        "gpu-mixed", "gpu_name", [rank for rank in ranks if rank.gpu_name]
    )
    # Is each /dev/shm large enough for the ranks that use it? Two containers on one host have one
    # each.
    for users in grouped(((rank.host, rank.shm_device), rank) for rank in ranks).values():
        first = users[0]
        small = surroundings.shared_memory_finding(
            first.shm_bytes, first.shm_free_bytes, len(users)
        )
        if small is not None:
            findings.append(replace(small, ranks=tuple(rank.rank for rank in users)))
    return findings


def _differing_values(finding_id: str, name: str, ranks: Sequence[RankFacts]) -> list[Finding]:
    """A finding about the ranks whose value differs from the majority's; about all ranks if there is
    no majority."""
    ranks_by_value = grouped((getattr(rank, name), rank.rank) for rank in ranks)
    if len(ranks_by_value) < 2:
        return []
    most = majority(ranks_by_value.values())
    texts = [
        f"{'absent' if value is None else value} on {name_ranks(having)}"
        for value, having in ranks_by_value.items()
    ]
    differing = tuple(rank.rank for rank in ranks if rank.rank not in most)
    return [Finding(finding_id, f"{name} is {', '.join(texts)}", differing)]
