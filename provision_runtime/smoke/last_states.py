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
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Type, TypeVar

from .. import fs
from ..comm import processes
from ..comm.store import StoreClient, StoreLost
from ..report.codec import decode
from .postmortem import STATE_FINDINGS, LastState, Location, PostmortemEvidence
from .rank_env import RankEnv

# All ranks notice a deadline within a tick of one another; this is how long the reporting rank
# waits for their last states.
GRACE_S = 2.0
POLL_S = 0.05
# How long the store may take to respond when the run ends.
STORE_CALL_S = 1.0
# How many of its latest calls a rank's last state has: two ranks that differ do so in the last few.
REPORTED_CALLS = 32


DocumentT = TypeVar("DocumentT", LastState, Location)


def state_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.last-state.json"


def location_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.location.json"


def stack_of_main_thread() -> list[str]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.format_stack(frame) if frame else []
    return [line.rstrip() for line in stack]


def write_last_state(state: LastState, out: Path, client: StoreClient | None) -> bool:
    """Writes a file first, which needs no other process, then the store.

    Returns whether the store took it: a store whose host is stopped would never respond. A folder
    that is full or gone keeps nothing from the store.
    """
    document = asdict(state)
    content = json.dumps(document, indent=2) + "\n"
    try:
        fs.atomic_write(state_path(out, state.rank), content.encode())
    except OSError as error:
        print(f"rank {state.rank}: its last state cannot be written: {error}", file=sys.stderr)
    if client is None:
        return False
    ended = threading.Event()

    def send() -> None:
        with contextlib.suppress(StoreLost):
            client.set(f"last-state/{state.rank}", document)
            ended.set()

    threading.Thread(target=send, daemon=True).start()
    return ended.wait(STORE_CALL_S)


def write_location(out: Path, rank: int, location: Location) -> None:
    fs.atomic_write(location_path(out, rank), json.dumps(asdict(location)).encode())


def read_locations(
    client: StoreClient | None, out: Path, env: RankEnv, agreed: Mapping[int, Location]
) -> dict[int, Location]:
    """Where every rank is that ever published it.

    From the store; if that no longer responds, as last agreed; for ranks that never reached the
    store, from the files next to the report.
    """
    locations = dict(agreed)
    for rank in range(env.world_size):
        path = None if rank in agreed else location_path(out, rank)
        location = _read(Location, client, f"at/{rank}", path, env.run)
        if location is not None:
            locations[rank] = location
    return locations


def examine_processes(evidence: PostmortemEvidence, ranks: Iterable[int]) -> None:
    """Adds the state of these ranks' processes, and how many processes the kernel killed in their
    cgroups, as memory ran out: by the counter that the rank published, if its process has ended."""
    for rank in ranks:
        location = evidence.locations.get(rank)
        if location is None:
            continue
        state = evidence.process_states[rank] = processes.state(location.process)
        if state == processes.GONE and location.oom is not None:
            evidence.oom_kills[rank] = location.oom.rise()


def collect_evidence(
    client: StoreClient | None, out: Path, env: RankEnv, agreed: Mapping[int, Location]
) -> PostmortemEvidence:
    """What the ranks wrote into the store, and those that never reached it next to the report; and
    the process states of those that wrote nothing. Waits GRACE_S at most."""
    evidence = PostmortemEvidence(locations=read_locations(client, out, env, agreed))
    deadline = time.monotonic() + GRACE_S
    while True:
        silent = []
        for rank in range(env.world_size):
            if rank in evidence.last_states:
                continue
            path = None if client is not None and rank in agreed else state_path(out, rank)
            state = _read(LastState, client, f"last-state/{rank}", path, env.run)
            if state is None:
                silent.append(rank)
            else:
                evidence.last_states[rank] = state
        evidence.process_states.clear()
        examine_processes(evidence, silent)
        states = [evidence.process_states.get(rank) for rank in silent]
        if all(state in STATE_FINDINGS for state in states) or time.monotonic() >= deadline:
            return evidence
        time.sleep(POLL_S)


def _read(
    kind: Type[DocumentT], client: StoreClient | None, key: str, path: Path | None, run: str
) -> DocumentT | None:
    """What a rank wrote into the store, else into a file; None if there is none of this run. Another
    release of this package may have written another document."""
    try:
        document = client.peek(key) if client is not None else None
    except StoreLost:
        document = None
    try:
        if document is None and path is not None:
            document = json.loads(path.read_text())
        result: DocumentT = decode(kind, document, key)
    except (OSError, ValueError):
        return None
    return result if result.run == run else None
