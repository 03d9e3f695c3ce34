"""Phase collectives: are the results exact at every size on every rank, and fast enough?

plan (what) → measure (check, then time; operations) → results (one table) → bandwidth

Every element is compared with the expected value. Times are the slowest rank's median; bandwidths
as nccl-tests defines them. Rank 0 has all ranks' figures and reports; the other ranks report only
their own errors.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ....checks import expectation
from ....comm.addresses import interface_with
from ....facts import libraries, nccl_log, wires
from ....fs.files import read_text
from ....report.codec import decode
from ... import bandwidth, measurement, network, transport
from ...outcome import Outcome, grouped
from ...wire_limit import HostWires, WireLimit, wire_limit
from . import pairs, plan, results
from .measure import Sweep
from .operations import Participants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....facts.model import WireFacts
    from ...context import RankContext
    from .measure import Measured

BOOT = Path("/proc/sys/kernel/random/boot_id")
RDMA_CARDS = Path("/sys/class/infiniband")


class RankInfo(measurement.RankCores, total=False):
    """What rank 0 must know of a rank. A rank on a CPU has no more than the first field; of the
    ranks of a host, one has its wires and the interface for TCP."""

    local_rank: int
    device: str
    free_bytes: int
    uuid: str | None
    address: str
    boot: str
    major: int
    may_use_nvls: bool
    wires: WireFacts
    interface: str


def run(context: RankContext) -> Outcome:
    rank_infos: list[RankInfo] = context.exchange("ranks that measure", _rank_info(context))
    scope = _scope(context, rank_infos)
    participants = Participants(context.env.rank, context.env.world_size, context.backend)
    sweep = Sweep(context, participants)
    supported, unsupported = _supported(context, sweep, scope)
    rows, measured_here = sweep.measure(plan.rows(scope, supported))
    measured: list[list[Measured]] = context.exchange("collectives measured", measured_here)
    # GB/s of pairs of ranks; empty with too few. On processors it only rehearses, which the quick
    # profile leaves out.
    is_worthwhile = context.env.world_size >= pairs.FEWEST_RANKS
    if not is_worthwhile or (context.options.quick and not context.on_gpu):
        pair_rates = {}
    else:
        pair_rates = pairs.table(context.exchange("pairs", pairs.measure(context)))
    logs = context.exchange("transports", _transports(context))
    if context.env.rank != 0:
        return Outcome()
    lines = results.table(rows, measured)
    wrong = results.wrong_value_findings(rows, measured)
    rank_transports = _rank_transports(rank_infos, logs)
    hosts = [info["host"] for info in rank_infos]
    local_ranks = [info["local_rank"] for info in rank_infos]
    hardware = _hardware(context, len(set(hosts)))
    is_nccl = context.backend == bandwidth.NCCL
    limit = _wire_limit(rank_infos, rank_transports, hardware.device) if is_nccl else None
    # Gloo's rates depend on what else uses the processors.
    weak = pairs.weak_pairs(pair_rates, hosts, local_ranks) if is_nccl else []
    curves = bandwidth.load_curves()
    bandwidth_findings = bandwidth.judge_lines(lines, hardware, curves, limit)
    collectives = dict.fromkeys(line["collective"] for line in lines)
    rail_rates = pairs.rails(pair_rates, hosts, local_ranks)
    data = {
        "ranks": hardware.ranks,
        "rows": lines,
        "refused": unsupported,
        "note": None if hardware.ranks > 1 else "busbw is not applicable to one rank",
        "cpu_share": measurement.describe_cpu_share(rank_infos),
        "hardware": asdict(hardware),
        "expected": bandwidth.expected_curves(hardware, curves, list(collectives)),
        "slowest_wire": None if limit is None else asdict(limit),
        "transports": transport.summary(rank_transports) if rank_transports else None,
        "pairs": [[*pair, round(gb_s, 3)] for pair, gb_s in sorted(pair_rates.items())],
        "rails": [[rail, round(gb_s, 3)] for rail, gb_s in rail_rates.items()],
    }
    findings = (
        *wrong,
        *weak,
        *transport.findings(rank_transports),
        *bandwidth_findings,
    )
    return Outcome(results.summary(lines), findings, data)


def _rank_info(context: RankContext) -> RankInfo:
    cores = measurement.rank_cores(context.env.host)
    info = cast("RankInfo", {**cores, "local_rank": context.env.local_rank})
    if not context.on_gpu:
        return info
    import torch

    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    info["device"] = properties.name
    info["free_bytes"] = torch.cuda.mem_get_info()[0]
    info["uuid"] = libraries.gpu_uuid(index)
    info["address"] = libraries.gpu_pci_address(index) or ""
    info["boot"] = read_text(BOOT).strip()
    info["major"] = properties.major
    info["may_use_nvls"] = bandwidth.may_use_nvls(os.environ, _nccl_version(context))
    if context.env.local_rank == 0 and context.backend == bandwidth.NCCL:
        info["wires"] = wires.collect()
        info["interface"] = _interface(context)
    return info


def _nccl_version(context: RankContext) -> str | None:
    """None if the ranks do not use NCCL."""
    if context.backend != bandwidth.NCCL:
        return None
    return expectation.nccl_version(context.facts["torch"])


def _transports(context: RankContext) -> dict[str, object] | None:
    """What NCCL's log of this rank says; None without NCCL, or if the user has the log elsewhere."""
    try:
        with context.nccl_log.open(errors="replace") as lines:
            return nccl_log.parse(lines, context.env.rank).as_json()
    except OSError:
        return None


def _rank_transports(
    rank_infos: Sequence[RankInfo], logs: Sequence[dict[str, object] | None]
) -> list[transport.RankTransports]:
    """Empty if the log of a rank is unknown, since half of the connections show little."""
    wires_by_host = {info["host"]: info["wires"] for info in rank_infos if "wires" in info}
    result = []
    for rank, (info, log) in enumerate(zip(rank_infos, logs)):
        if log is None or info["host"] not in wires_by_host:
            return []
        result.append(
            transport.RankTransports(
                rank=rank,
                host=info["host"],
                uuid=info["uuid"] or "",
                device=info["device"],
                major=info["major"],
                log=decode(nccl_log.Transports, log, "the log of NCCL"),
                wires=wires_by_host[info["host"]],
                may_use_nvls=info["may_use_nvls"],
                address=info["address"],
                boot=info["boot"],
            )
        )
    return result


def _interface(context: RankContext) -> str:
    """The network interface that the backend uses for TCP; empty if that is unknown."""
    try:
        return interface_with(network.backend_address(context)) or ""
    except (LookupError, OSError):
        return ""


def _wire_limit(
    rank_infos: Sequence[RankInfo], transports: Sequence[transport.RankTransports], device: str
) -> WireLimit | None:
    """What the slowest wire allows; None if one of them is unknown, or there is no GPU."""
    cliques = {rank.host: rank.log.clique or "" for rank in transports}
    by_host = grouped((info["host"], info) for info in rank_infos)
    hosts = []
    for host, infos in by_host.items():
        first = next((info for info in infos if "wires" in info), None)
        gpus = [(info.get("uuid") or "", info.get("address", "")) for info in infos]
        if first is None or not all(uuid for uuid, _ in gpus):
            return None
        hosts.append(
            HostWires(
                host, tuple(gpus), first["wires"], first["interface"], device, cliques.get(host, "")
            )
        )
    return wire_limit(hosts)


def _scope(context: RankContext, rank_infos: Sequence[RankInfo]) -> plan.Scope:
    """Gloo moves GPU tensors through the host, and with it several ranks may share a GPU."""
    is_nccl = context.backend == bandwidth.NCCL
    ranks_per_gpu = 1 if is_nccl else len(rank_infos)
    free_bytes = [info.get("free_bytes", float("inf")) for info in rank_infos]
    most_bytes = min(free_bytes) / ranks_per_gpu * plan.MEMORY_SHARE
    crowding = 1.0 if is_nccl else max(measurement.ranks_per_core(rank_infos), 1.0)
    device = "cuda" if is_nccl else "cpu"
    return plan.Scope(context.options.profile, device, len(rank_infos), most_bytes, crowding)


def _supported(
    context: RankContext, sweep: Sweep, scope: plan.Scope
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Which collectives and types can be measured, and why the rest cannot.

    The same on all ranks: no rank calls what the backend of any rank lacks.
    """
    import torch

    unsupported: dict[str, str] = {}
    offered = []
    for collective, dtype in plan.candidates(scope):
        reason = plan.why_unsuited(collective, dtype, scope.ranks)
        if reason:
            unsupported[f"{collective} {dtype}"] = reason
        else:
            offered.append((collective, dtype))
    # The first, all_reduce of float32, must work; the others are tried.
    unsupported_here = [
        f"{collective} {dtype}"
        for collective, dtype in offered[1:]
        if sweep.is_unsupported(plan.smallest(scope, collective, dtype))
    ]
    reason = f"not offered by {context.backend} of torch {torch.__version__}"
    for names in context.exchange("collectives offered", unsupported_here):
        unsupported.update(dict.fromkeys(names, reason))
    return [pair for pair in offered if " ".join(pair) not in unsupported], unsupported


def _hardware(context: RankContext, hosts: int) -> bandwidth.Hardware:
    """What the expected bandwidth depends on."""
    device = bandwidth.CPU
    if context.on_gpu:
        import torch

        device = str(torch.cuda.get_device_name())
    nvls = bandwidth.may_use_nvls(os.environ, _nccl_version(context))
    ranks = context.env.world_size
    return bandwidth.Hardware(device, ranks, hosts, fabric(), nvls, context.backend)


def fabric(cards: Path = RDMA_CARDS) -> str:
    """The drivers of the RDMA cards, which distinguish EFA from InfiniBand; empty if there are
    none."""
    drivers = {path.resolve().name for path in cards.glob("*/device/driver")}
    return ",".join(sorted(drivers))
