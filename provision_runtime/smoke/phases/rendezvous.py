"""Phase rendezvous: every rank reaches the store, and a process group of the chosen backend starts.

Names the ranks that do not join, and the reason if possible. Also compares the ranks' clocks,
through the store.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from ...checks.releases import device_id_hangs, numbers
from ...comm import listeners
from ...comm.addresses import interfaces
from ...comm.store import StoreAllGather, StoreClient
from ...report.codec import decode
from ...report.text import format_count
from .. import nccl_variables, network
from ..context import RankContext
from ..measurement import rank_cores
from ..outcome import Finding, Outcome, with_finding
from ..postmortem import Location

# Longer than any phase: our watchdog, which names the culprit, comes before the backend's own
# time-out, which does not.
GROUP_TIMEOUT = timedelta(seconds=900)
# Connecting gives up this long before the deadline, or after two thirds of the time: this rank can
# then write the reason before the others stop waiting. In some releases the store takes seconds
# longer than its time-out.
BEFORE_DEADLINE_S = 5.0
# device_id makes NCCL connect at once and barriers use the right GPU.
DEVICE_ID_SINCE = (2, 3)
INJECTED_SKEW_S = 30.0
NAME_PAUSE_S = 0.5

# Munge refuses credentials after minutes, TLS refuses certificates from the future at once; NTP
# keeps clocks within milliseconds.
TOLERATED_SKEW_S = 1.0


class StoreUnreachable(Exception):
    """The store cannot be reached: the finding's id, and why."""

    def __init__(self, finding_id: str, reason: str) -> None:
        super().__init__(reason)
        self.finding_id = finding_id


def run(context: RankContext) -> Outcome:
    started = time.monotonic()
    try:
        _reach_store(context)
    except StoreUnreachable as error:
        return with_finding(error.finding_id, str(error), broken=True)
    store_s = time.monotonic() - started
    greetings = context.exchange(
        "hello", [asdict(context.location), context.unusable, rank_cores(context.env.host)]
    )
    for rank, (location, _, cores) in enumerate(greetings):
        context.locations[rank] = decode(Location, location, "location")
        context.cores.append(cores)
    context.hosts = list(dict.fromkeys(where.host for where in context.locations.values()))
    clock = _clocks(context)
    data = {"hosts": context.hosts, "store_s": round(store_s, 3), "clock": clock}
    unusable_ranks = [rank for rank, (_, unusable, _) in enumerate(greetings) if unusable]
    if unusable_ranks:
        message = f"no process group was started: {context.backend} is not usable"
        return with_finding("backend-unusable", message, unusable_ranks, broken=True)
    peers = network.check_peers(context)
    if peers.broken:
        return replace(peers, data=data)
    backend = _start_group(context)
    data["group_s"] = round(time.monotonic() - started - store_s, 3)
    findings = []
    if context.env.rank == 0:
        findings = skew_findings(clock["skew_s_by_rank"], clock["bound_s"])
    if backend != context.backend:
        message = f"the process group uses {backend}, but {context.backend} was requested"
        findings.append(Finding("backend-other", message))
    ranks = format_count(context.env.world_size, "rank")
    hosts = format_count(len(context.hosts), "host")
    return Outcome(f"{ranks} on {hosts}, {backend}", tuple(findings), data)


def _reach_store(context: RankContext) -> None:
    """Connects three times, so that the process group, the exchanges and the watchdog do not wait
    for one another's lock."""
    env = context.env
    remaining_s = context.remaining_s()
    ends_at = time.monotonic() + max(remaining_s - min(BEFORE_DEADLINE_S, remaining_s / 3), 1)
    context.step = "reach the store"
    _await_name(env.master_addr, env.master_port, ends_at)
    hosts_store = env.rank == 0 and not env.store_is_hosted
    context.store = _connect(context, hosts_store, ends_at)
    context.client = StoreClient(_connect(context, False, ends_at))
    context.all_gather = StoreAllGather(context.client, env.rank, env.world_size)
    context.watchdog_client = StoreClient(_connect(context, False, ends_at))
    context.publish_location()


def _await_name(address: str, port: int, ends_at: float) -> None:
    """Waits until the master's name resolves: it may do so only after rank 0's host or container is
    up.

    torch's store would wait for that too, but returned 5 s and more after its own time-out (2.13),
    when no rank waits for the reason any longer.
    """
    while True:
        try:
            socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            return
        except socket.gaierror:
            if time.monotonic() >= ends_at:
                raise _unreachable(address, port) from None
        time.sleep(NAME_PAUSE_S)


def _connect(context: RankContext, is_host: bool, ends_at: float) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    env = context.env
    timeout = timedelta(seconds=max(ends_at - time.monotonic(), 1))
    try:
        # Without the number of workers: the store must not wait for ranks that never join.
        store = TCPStore(
            env.master_addr,
            env.master_port,
            is_master=is_host,
            timeout=timeout,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        if is_host and ("EADDRINUSE" in str(error) or "in use" in str(error)):
            owner = listeners.listener(env.master_port) or "another process"
            message = f"port {env.master_port} of this host is in use by {owner}"
            raise StoreUnreachable("port-busy", message) from error
        raise _unreachable(env.master_addr, env.master_port) from error
    # Later waits of this store are for keys that exist.
    store.set_timeout(timedelta(seconds=context.remaining_s() + GROUP_TIMEOUT.total_seconds()))
    return PrefixStore(f"provision/{env.attempt}", store)


def _unreachable(address: str, port: int) -> StoreUnreachable:
    silent = f"{address}:{port} accepts connections, but does not respond as a store"
    return StoreUnreachable(*(network.why_unreachable(address, port) or ("store-silent", silent)))


def _start_group(context: RankContext) -> str:
    """Returns the backend that the process group uses."""
    import torch
    from torch.distributed import PrefixStore

    env = context.env
    if env.all_local and "lo" in interfaces():
        # Gloo uses the address that the host's name resolves to; in a container without a network
        # it does not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "OMP_NUM_THREADS" not in os.environ:
        # As torchrun does: ranks that each use all cores slow one another down.
        torch.set_num_threads(1)
    if context.on_gpu:
        torch.cuda.set_device(context.device)
    extra: dict[str, Any] = {}
    if context.backend == "nccl":
        version = str(torch.__version__)
        os.environ.update(nccl_variables.for_run(version, os.environ, context.nccl_log))
        if takes_device_id(version):
            extra["device_id"] = torch.device(context.device)
    context.begin_collective("init_process_group")
    torch.distributed.init_process_group(
        context.backend,
        store=PrefixStore("group", context.store),
        rank=env.rank,
        world_size=env.world_size,
        timeout=GROUP_TIMEOUT,
        **extra,
    )
    return str(torch.distributed.get_backend())


def takes_device_id(version: str) -> bool:
    release = numbers(version)
    return release >= DEVICE_ID_SINCE and not device_id_hangs(release)


def _clocks(context: RankContext) -> dict[str, Any]:
    """By how much the ranks' clocks differ from rank 0's. All ranks read theirs after the first
    exchange is complete and before the second is, so the time of both bounds the error."""
    ahead_s = INJECTED_SKEW_S if context.options.fault("clock-skew", context.env.rank) else 0.0
    started = time.monotonic()
    context.exchange("before clocks", None)
    times = context.exchange("after clocks", time.time() + ahead_s)
    bound_s = round(time.monotonic() - started, 6)
    return {"skew_s_by_rank": [round(t - times[0], 6) for t in times], "bound_s": bound_s}


def skew_findings(skews: Sequence[float], bound_s: float) -> list[Finding]:
    """The ranks whose clocks differ from the median, by each rank's skew against rank 0."""
    # If there are two middle values, the one closer to rank 0's clock.
    middle = sorted(skews)[(len(skews) - 1) // 2 : len(skews) // 2 + 1]
    median = min(middle, key=abs)
    findings = []
    for rank, skew in enumerate(skews):
        difference = skew - median
        if abs(difference) - bound_s > TOLERATED_SKEW_S:
            direction = "ahead of" if difference > 0 else "behind"
            message = (
                f"its clock is {abs(difference):.1f} s {direction} the other ranks' "
                f"(±{bound_s:.3f} s)"
            )
            findings.append(Finding("clock-skew", message, (rank,)))
    return findings
