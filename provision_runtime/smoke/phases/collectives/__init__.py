"""Phase collectives: are the results exact at every size on every rank, and fast enough?

plan (what) → measure (check, then time; operations) → results (one table) → bandwidth

Every element is compared with the expected value. Times are the slowest rank's median; bandwidths
as nccl-tests defines them. Rank 0 has all ranks' figures and reports; the other ranks report only
their own errors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .... import fs
from ....checks import expectation
from ....comm.addresses import interface_with
from ....facts import libraries, nccl_log, wires
from ....report.credentials import public_document
from ... import bandwidth, baseline, measurement, network, transport
from ...outcome import Finding, Outcome, combine
from ...wire_limit import HostWires, WireLimit, wire_limit
from . import nccl_tests, pairs, plan, results
from .measure import Sweep
from .operations import Participants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...context import RankContext

# Variables that go into nccl-tests.json.
VARIABLE_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
RDMA_CARDS = Path("/sys/class/infiniband")


def run(context: RankContext) -> Outcome:
    started = time.localtime()
    rank_infos = context.exchange("who measures", _rank_info(context))
    scope = _scope(context, rank_infos)
    participants = Participants(context.env.rank, context.env.world_size, context.backend)
    sweep = Sweep(context, participants)
    supported, unsupported = _supported(context, sweep, scope)
    rows = plan.rows(scope, supported)
    rows, measured_here = sweep.measure(rows)
    measured = context.exchange("collectives measured", measured_here)
    pair_rates = _pair_rates(context)
    transports = context.exchange("transports", _transports(context))
    if context.env.rank != 0:
        return Outcome()
    lines = results.table(rows, measured)
    _write_nccl_tests(context, started, rank_infos, rows, measured)
    return _conclude(
        context,
        lines,
        unsupported,
        rank_infos,
        _rank_transports(rank_infos, transports),
        (
            *results.wrong_value_findings(rows, measured),
            *_weak_pairs(context, pair_rates, rank_infos),
        ),
        pair_rates,
    )


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return combine(outcomes)


def _rank_info(context: RankContext) -> dict[str, Any]:
    """What rank 0 needs of this rank."""
    info = {
        **measurement.own_cpus(context.env.host),
        "pid": os.getpid(),
        "local_rank": context.env.local_rank,
        "free": None,
        "device": 0,
        "bus": "0000:00:00",
    }
    if not context.on_gpu:
        info["info"] = cpu_name()
        return info
    import torch

    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    # Only later releases report the bus.
    bus = [getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
    info["free"] = torch.cuda.mem_get_info()[0]
    info["device"] = index
    info["bus"] = "{:04x}:{:02x}:{:02x}".format(*bus)
    info["info"] = properties.name
    info["uuid"] = libraries.gpu_uuid(index)
    info["address"] = libraries.gpu_pci_address(index) or ""
    if context.env.local_rank == 0 and context.backend == bandwidth.NCCL:
        # The same for the whole host, so one rank reads them.
        info["wires"] = wires.collect()
        info["interface"] = _interface(context)
    info["major"] = properties.major
    if context.backend == bandwidth.NCCL:
        nccl = expectation.nccl_version(context.facts["torch"])
        info["may_use_nvls"] = bandwidth.may_use_nvls(os.environ, nccl)
    return info


def _pair_rates(context: RankContext) -> dict[tuple[int, int], float]:
    """GB/s of every pair of ranks; empty with too few or too many ranks. On processors it only
    rehearses, which the quick profile leaves out."""
    if not pairs.is_worthwhile(context.env.world_size):
        return {}
    if context.options.quick and not context.on_gpu:
        return {}
    return pairs.table(context.exchange("pairs", pairs.measure(context)))


def _weak_pairs(
    context: RankContext,
    rates: dict[tuple[int, int], float],
    rank_infos: Sequence[Mapping[str, Any]],
) -> tuple[Finding, ...]:
    """Only NCCL's: Gloo's depend on who else uses the processors."""
    if context.backend != bandwidth.NCCL:
        return ()
    return tuple(pairs.weak_pairs(rates, *_hosts_and_local_ranks(rank_infos)))


def _hosts_and_local_ranks(rank_infos: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[int]]:
    """Host and local rank of each rank."""
    hosts = [str(info["host"]) for info in rank_infos]
    return hosts, [int(info["local_rank"]) for info in rank_infos]


def _transports(context: RankContext) -> dict[str, Any] | None:
    """What NCCL's log of this rank says; None without NCCL, or if the user has the log elsewhere."""
    try:
        with context.nccl_log.open(errors="replace") as lines:
            return nccl_log.parse(lines, context.env.rank).as_json()
    except OSError:
        return None


def _rank_transports(
    rank_infos: Sequence[dict[str, Any]], transports: Sequence[dict[str, Any] | None]
) -> list[transport.RankTransports]:
    """Empty if the log of a rank is unknown, since half of the connections show little."""
    wires_by_host = {info["host"]: info["wires"] for info in rank_infos if "wires" in info}
    result = []
    for rank, (info, log) in enumerate(zip(rank_infos, transports)):
        if log is None or info["host"] not in wires_by_host:
            return []
        result.append(
            transport.RankTransports(
                rank=rank,
                host=info["host"],
                uuid=info["uuid"] or "",
                device=info["info"],
                major=info["major"],
                log=log,
                wires=wires_by_host[info["host"]],
                may_use_nvls=info["may_use_nvls"],
            )
        )
    return result


def _interface(context: RankContext) -> str:
    """The network interface that the backend uses for TCP; empty if that is unknown."""
    try:
        return interface_with(network.backend_address(context)) or ""
    except (LookupError, OSError):
        return ""


def _wire_limit(rank_infos: Sequence[dict[str, Any]], device: str) -> WireLimit | None:
    """What the slowest wire allows; None if one of them is unknown, or there is no GPU."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for info in rank_infos:
        by_host.setdefault(info["host"], []).append(info)
    hosts = []
    for host, infos in by_host.items():
        first = next((info for info in infos if "wires" in info), None)
        if first is None or not all(info.get("uuid") for info in infos):
            return None
        gpus = tuple((info["uuid"], info["address"]) for info in infos)
        hosts.append(HostWires(host, gpus, first["wires"], first["interface"], device))
    return wire_limit(hosts)


def _scope(context: RankContext, rank_infos: Sequence[dict[str, Any]]) -> plan.Scope:
    """Gloo moves GPU tensors through the host, and with it several ranks may share a GPU."""
    is_nccl = context.backend == "nccl"
    ranks_per_gpu = 1 if is_nccl else len(rank_infos)
    free = [info["free"] / ranks_per_gpu for info in rank_infos if info["free"] is not None]
    most_bytes = min(free, default=float("inf")) * plan.MEMORY_SHARE
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
    if len(offered) > 1:
        # The first, all_reduce of float32, must work; the others are tried.
        unsupported_here = []
        for collective, dtype in offered[1:]:
            if sweep.is_unsupported(plan.smallest(scope, collective, dtype)):
                unsupported_here.append(f"{collective} {dtype}")
        reason = f"not offered by {context.backend} of torch {torch.__version__}"
        for names in context.exchange("collectives offered", unsupported_here):
            unsupported.update(dict.fromkeys(names, reason))
    return [pair for pair in offered if " ".join(pair) not in unsupported], unsupported


def _conclude(
    context: RankContext,
    lines: list[dict[str, Any]],
    unsupported: dict[str, str],
    rank_infos: Sequence[dict[str, Any]],
    rank_transports: Sequence[transport.RankTransports],
    wrong: tuple[Finding, ...],
    pair_rates: dict[tuple[int, int], float],
) -> Outcome:
    """Rank 0's outcome."""
    ranks = context.env.world_size
    hosts = len({info["host"] for info in rank_infos})
    curves = bandwidth.load_curves(context.options.expect or bandwidth.SHIPPED)
    hardware = _hardware(context, hosts)
    limit = _wire_limit(rank_infos, hardware.device) if context.backend == bandwidth.NCCL else None
    judged_lines, bandwidth_findings = bandwidth.judge_lines(lines, hardware, curves, limit)
    comparison, regressions = _apply_baseline(context, lines, hosts)
    collectives = list(dict.fromkeys(line["collective"] for line in lines))
    data = {
        "ranks": ranks,
        "rows": judged_lines,
        "refused": unsupported,
        "note": None if ranks > 1 else "busbw is not applicable to one rank",
        "seats": measurement.describe_cpu_share(rank_infos),
        "hardware": {
            "device": hardware.device,
            "hosts": hosts,
            "fabric": hardware.fabric,
            "nvls": hardware.nvls,
        },
        "expected": bandwidth.expected_curves(hardware, curves, collectives),
        "slowest_wire": None if limit is None else asdict(limit),
        "transports": transport.summary(rank_transports) if rank_transports else None,
        "pairs": [[*pair, round(gb_s, 3)] for pair, gb_s in sorted(pair_rates.items())],
        "rails": [
            [rail, round(gb_s, 3)]
            for rail, gb_s in pairs.rails(pair_rates, *_hosts_and_local_ranks(rank_infos)).items()
        ],
        "baseline": comparison,
    }
    findings = (
        *wrong,
        *transport.findings(rank_transports),
        *bandwidth_findings,
        *regressions,
    )
    return Outcome(results.summary(judged_lines), findings, data)


def _apply_baseline(
    context: RankContext, lines: list[dict[str, Any]], hosts: int
) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    """Saves or compares, as the options say. Returns the report's text and data, and findings."""
    if context.options.baseline is None:
        return None, ()
    verb, path = context.options.baseline
    identity = _identity(context, hosts)
    if verb == "compare":
        is_nccl = context.backend == "nccl"
        return baseline.compare(baseline.load(path), identity, lines, is_nccl)
    try:
        baseline.save(path, identity, lines)
    except OSError as error:
        message = f"the baseline {path} could not be written: {error.strerror}"
        return {"answer": "not saved"}, (Finding("baseline-unsaved", message, (0,)),)
    return {"answer": f"saved to {path}"}, ()


def _hardware(context: RankContext, hosts: int) -> bandwidth.Hardware:
    """What the expected bandwidth depends on."""
    nvls = False
    if context.backend == "nccl":
        nccl = expectation.nccl_version(context.facts["torch"])
        nvls = bandwidth.may_use_nvls(os.environ, nccl)
    return bandwidth.Hardware(
        _device_name(context), context.env.world_size, hosts, fabric(), nvls, context.backend
    )


def _identity(context: RankContext, hosts: int) -> baseline.Identity:
    import torch

    nccl = None
    if context.backend == "nccl":
        nccl = expectation.nccl_version(context.facts["torch"])
    device = _device_name(context) if context.on_gpu else cpu_name()
    return baseline.Identity(
        context.backend, device, context.env.world_size, hosts, torch.__version__, nccl
    )


def _device_name(context: RankContext) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if context.on_gpu else bandwidth.CPU


def cpu_name() -> str:
    """The model, and the number of usable cores: with half as many it counts as another machine."""
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    for line in lines:
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return "cpu"


def fabric(cards: Path = RDMA_CARDS) -> str:
    """The drivers of the RDMA cards, which distinguish EFA from InfiniBand; empty if there are
    none."""
    drivers = {path.resolve().name for path in cards.glob("*/device/driver")}
    return ",".join(sorted(drivers))


def _write_nccl_tests(
    context: RankContext,
    started: time.struct_time,
    rank_infos: Sequence[dict[str, Any]],
    rows: list[plan.Row],
    measured: list[list[dict[str, Any]]],
) -> None:
    """One file for each collective and type."""
    devices = []
    for rank, info in enumerate(rank_infos):
        device = nccl_tests.Device(
            rank, info["pid"], info["host"], info["device"], info["bus"], info["info"]
        )
        devices.append(device)
    variables = []
    for name, value in sorted(os.environ.items()):
        if name.startswith(VARIABLE_PREFIXES):
            variables.append(f"{name}={value}")
    nccl = None
    if context.backend == "nccl":
        nccl = expectation.nccl_version(context.facts["torch"])
    run_info = nccl_tests.RunInfo(
        time.strftime(nccl_tests.TIME_FORMAT, started),
        time.strftime(nccl_tests.TIME_FORMAT),
        sys.argv,
        variables,
        nccl,
        devices,
        context.on_gpu,
    )
    for old in context.options.out.glob("nccl-tests*.json"):
        fs.files.remove_if_exists(old)
    indices: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        indices.setdefault((row.collective, row.dtype), []).append(index)
    for (collective, dtype), chosen in indices.items():
        document = nccl_tests.document(
            run_info,
            [rows[index] for index in chosen],
            [[by_row[index] for index in chosen] for by_row in measured],
        )
        path = context.options.out / nccl_tests.file_name(collective, dtype)
        fs.atomic_write(path, (json.dumps(public_document(document), indent=1) + "\n").encode())
