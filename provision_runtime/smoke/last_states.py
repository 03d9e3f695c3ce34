"""What a rank writes while it runs and before it ends early, and how the reporting rank gathers
that of all ranks.

Runs in the watchdog's thread while the main thread hangs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import fs
from ..comm import processes
from ..comm.store import StoreLost
from ..facts.oom import OomCounter
from . import flight_recorder
from .options import PHASES
from .postmortem import STATE_FINDINGS, PostmortemEvidence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..comm.store import StoreClient
    from .postmortem import Position
    from .rank_env import RankEnv

# All ranks notice a deadline within a tick of one another; this is how long the reporting rank
# waits for their last states.
GRACE_S = 2.0
POLL_S = 0.05
# How long the store may take to respond when the run ends.
STORE_CALL_S = 1.0
# How many of its latest calls a rank's last state has: two ranks that differ do so in the last few.
REPORTED_CALLS = 32


def state_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.last-state.json"


def location_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.location.json"


def last_state(
    run: str,
    rank: int,
    host: str,
    reason: str,
    position: Position,
    calls: list[list[Any]],
    outcome: dict[str, Any],
    oom_kills: int = 0,
) -> dict[str, Any]:
    """What a rank writes before it ends. outcome: of the phase, if the rank had left it. oom_kills:
    processes of its cgroup that the kernel killed meanwhile."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.format_stack(frame) if frame else []
    return {
        "schema": 2,
        "kind": "last-state",
        "run": run,
        "rank": rank,
        "host": host,
        "reason": reason,
        "position": position.as_json(),
        "calls": calls[-REPORTED_CALLS:],
        "outcome": outcome,
        "oom_kills": oom_kills,
        "stack": [line.rstrip() for line in stack],
        "nccl_calls": flight_recorder.latest(),
    }


def write_last_state(state: dict[str, Any], out: Path, client: StoreClient | None) -> bool:
    """Writes a file first, which needs no other process, then the store.

    Returns whether the store took it: a store whose host is stopped would never respond.
    """
    content = json.dumps(state, indent=2) + "\n"
    fs.atomic_write(state_path(out, state["rank"]), content.encode())
    if client is None:
        return False
    return _ends_within(STORE_CALL_S, lambda: client.set(f"last-state/{state['rank']}", state))


def _ends_within(seconds: float, call: Callable[[], Any]) -> bool:
    """True if the store responded in time; if not, the call continues in its thread."""
    ended = threading.Event()

    def run() -> None:
        with contextlib.suppress(StoreLost):
            call()
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended.wait(seconds)


def location(
    env: RankEnv, process: list[str], oom_counter: OomCounter | None, phase: str = PHASES[0]
) -> dict[str, Any]:
    """Where a rank is, and what others need to find out its end."""
    return {
        "phase": phase,
        "host": env.host,
        "process": process,
        "run": env.run,
        "oom": asdict(oom_counter) if oom_counter is not None else None,
    }


def write_location(out: Path, rank: int, location: dict[str, Any]) -> None:
    fs.atomic_write(location_path(out, rank), json.dumps(location).encode())


def read_locations(
    client: StoreClient | None,
    out: Path,
    world_size: int,
    agreed: Mapping[int, Any],
    run: str,
) -> dict[int, Any]:
    """Phase, host and process of every rank that ever published them.

    From the store; if that no longer responds, as last agreed; for ranks that never reached the
    store, from the files next to the report.
    """
    locations = {}
    for rank in range(world_size):
        location = _peek(client, f"at/{rank}") or agreed.get(rank)
        location = location or _read_of_run(location_path(out, rank), run)
        if location is not None:
            locations[rank] = location
    return locations


def process_states(locations: Mapping[int, Any], ranks: Sequence[int]) -> dict[int, str]:
    return {
        rank: processes.state(locations[rank]["process"]) for rank in ranks if rank in locations
    }


def oom_kills(
    locations: Mapping[int, Any], last_states: Mapping[int, Any], ranks: Sequence[int]
) -> dict[int, int]:
    """How many processes the kernel killed in the cgroup of each of these ranks, as memory ran out.

    By the counter that the rank published, if its process has ended; for a process of another host,
    which this one does not see, by what other ranks there wrote before they ended.
    """
    kills = {}
    for rank in ranks:
        if rank not in locations:
            continue
        location = locations[rank]
        state = processes.state(location["process"])
        if state == processes.GONE and location["oom"] is not None:
            kills[rank] = OomCounter(**location["oom"]).rise()
        elif state == processes.UNKNOWN:
            host = location["host"]
            seen = [last["oom_kills"] for last in last_states.values() if last["host"] == host]
            kills[rank] = max(seen, default=0)
    return kills


def collect_evidence(
    client: StoreClient | None,
    out: Path,
    world_size: int,
    agreed: Mapping[int, Any],
    run: str,
) -> PostmortemEvidence:
    """What the ranks wrote into the store or next to the report, and the process states of those
    that wrote nothing. Waits GRACE_S at most."""
    evidence = PostmortemEvidence(locations=read_locations(client, out, world_size, agreed, run))
    ranks = range(world_size)
    in_store: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while True:
        for rank in ranks:
            if time.monotonic() >= deadline:
                break
            state = None if rank in in_store else _peek(client, f"last-state/{rank}")
            if state is not None:
                in_store.add(rank)
            elif rank not in evidence.last_states:
                state = _read_of_run(state_path(out, rank), run)
            if state is not None:
                evidence.last_states[rank] = state
        silent = [rank for rank in ranks if rank not in evidence.last_states]
        evidence.process_states = process_states(evidence.locations, silent)
        complete = in_store if client is not None else set(evidence.last_states)
        awaited = []
        for rank in ranks:
            if rank not in complete and evidence.process_states.get(rank) not in STATE_FINDINGS:
                awaited.append(rank)
        if not awaited or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    evidence.oom_kills = oom_kills(evidence.locations, evidence.last_states, silent)
    if client is not None:
        evidence.cut_off = _cut_off_ranks(evidence, in_store)
    return evidence


def _cut_off_ranks(evidence: PostmortemEvidence, in_store: set[int]) -> list[int]:
    """Ranks on hosts that reached the store before, but now only a shared disk."""
    hosts = {rank: state["host"] for rank, state in evidence.last_states.items()}
    reaching_hosts = {hosts[rank] for rank in in_store}
    cut_off = []
    for rank, host in sorted(hosts.items()):
        if rank in evidence.locations and host not in reaching_hosts:
            cut_off.append(rank)
    return cut_off


def is_reported(client: StoreClient | None) -> bool:
    """Whether rank 0 has reported the end already."""
    return _peek(client, "reported") is not None


def kill_silent_ranks(evidence: PostmortemEvidence, ranks: Sequence[int]) -> None:
    """Kills ranks of this host that could not even write their last state: they would outlive the
    run."""
    for rank in ranks:
        if rank in evidence.locations and rank not in evidence.last_states:
            processes.kill(evidence.locations[rank]["process"])


def _peek(client: StoreClient | None, key: str) -> Any:
    try:
        return client.peek(key) if client is not None else None
    except StoreLost:
        return None


def _read_of_run(path: Path, run: str) -> Any:
    """The document in a file; None if there is none, or if it is from an earlier run."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if document is not None and document.get("run") == run else None
