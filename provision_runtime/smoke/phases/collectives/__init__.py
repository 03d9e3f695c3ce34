"""Phase collectives: are the results exact at every size on every rank, and fast enough?

plan (what) → measure (check, then time) → results (one table) → bandwidth

Every element is compared with the expected value. Times are the slowest rank's median; bandwidths
as nccl-tests defines them. Rank 0 has all ranks' figures and reports; the other ranks report only
their own errors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ....checks import expectation
from ....comm.addresses import interface_with
from ....facts import libraries, nccl_log, wires
from ....fs.files import read_text
from ....report.codec import decode
from ... import bandwidth, network, transport
from ...context import RankContext
from ...outcome import Outcome, grouped
from ...transport import RankTransports
from ...wire_limit import HostWires, WireLimit, wire_limit
from . import plan, results
from .measure import Measured, measure

BOOT = Path("/proc/sys/kernel/random/boot_id")


def run(context: RankContext) -> Outcome:
    ranks, uses_nccl = context.env.world_size, context.backend == bandwidth.NCCL
    free_bytes = math.inf
    if context.on_gpu:
        import torch

        free_bytes = torch.cuda.mem_get_info()[0]
    most_bytes = min(context.exchange("ranks that measure", free_bytes)) * plan.MEMORY_SHARE
    # Gloo moves GPU tensors through the host, and with it several ranks may share a GPU.
    scope = plan.Scope(context.options.profile, "cpu", ranks, most_bytes / ranks)
    if uses_nccl:
        scope = replace(scope, device="cuda", most_bytes=most_bytes)
    rows, measured_here = measure(context, plan.rows(scope))
    measured: list[list[Measured]] = context.exchange("collectives measured", measured_here)
    gpus = context.exchange("transports", _transports(context) if uses_nccl else None)
    if context.env.rank != 0:
        return Outcome()
    lines = results.table(rows, measured)
    over_nccl = _ranks_over_nccl(gpus) if uses_nccl else []
    limit = _wire_limit(over_nccl)
    hardware = bandwidth.Hardware(
        over_nccl[0].device if over_nccl else context.device,
        ranks,
        len(context.hosts),
        bool(over_nccl) and over_nccl[0].may_use_nvls,
        context.backend,
    )
    findings = [
        *results.wrong_value_findings(rows, measured),
        *transport.findings(over_nccl),
        *bandwidth.judge_lines(lines, hardware, limit),
    ]
    data = {
        "ranks": ranks,
        "rows": lines,
        "hardware": asdict(hardware),
        "slowest_wire": limit and asdict(limit),
        "transports": [{"rank": rank.rank, **asdict(rank.log)} for rank in over_nccl],
    }
    return Outcome(results.summary(lines), tuple(findings), data)


def _transports(context: RankContext) -> dict[str, Any]:
    """This rank's GPU and NCCL's log, as RankTransports. Of the ranks of a host, the first has its
    wires and the interface for TCP."""
    import torch

    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    try:
        with context.nccl_log.open(errors="replace") as lines:
            log = nccl_log.parse(lines, context.env.rank)
    except OSError:  # the user has it elsewhere: all is unknown
        log = nccl_log.Transports()
    version = expectation.nccl_version(context.facts["torch"])
    interface = ""
    if context.is_first_of_host:
        try:
            interface = interface_with(network.backend_address(context)) or ""
        except (LookupError, OSError):
            pass
    return {
        "rank": context.env.rank,
        "host": context.env.host,
        "uuid": libraries.gpu_uuid(index) or "",
        "device": properties.name,
        "major": properties.major,
        "log": asdict(log),
        "wires": wires.collect() if context.is_first_of_host else None,
        "may_use_nvls": bandwidth.may_use_nvls(os.environ, version),
        "address": libraries.gpu_pci_address(index) or "",
        "boot": read_text(BOOT).strip(),
        "interface": interface,
    }


def _ranks_over_nccl(gpus: Sequence[dict[str, Any]]) -> list[RankTransports]:
    first_of_host = {gpu["host"]: gpu for gpu in gpus if gpu["wires"]}
    ranks = []
    for gpu in gpus:
        of_host = {name: first_of_host[gpu["host"]][name] for name in ("wires", "interface")}
        log = decode(nccl_log.Transports, gpu["log"], "the log of NCCL")
        ranks.append(RankTransports(**{**gpu, **of_host, "log": log}))
    return ranks


def _wire_limit(ranks: Sequence[RankTransports]) -> WireLimit | None:
    """What the slowest wire allows; None if one of them is unknown, or there is no GPU."""
    if not ranks or not all(rank.uuid for rank in ranks):
        return None
    hosts = []
    for host, members in grouped((rank.host, rank) for rank in ranks).items():
        first = members[0]
        gpus = tuple((rank.uuid, rank.address) for rank in members)
        clique = first.log.clique or ""
        hosts.append(HostWires(host, gpus, first.wires, first.interface, first.device, clique))
    return wire_limit(hosts)
