"""The record of a shipment on this machine: one line for each change of a node's state, on the disk
before the next stage begins. `--resume` reads it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, TypedDict

from provision.cluster.failures import REASONS, NodeFailure
from provision.core.errors import IntegrityError
from provision.core.json_text import parse_json
from provision.core.paths import make_private_directory
from provision.core.schema import schema_error
from provision.workflow.ship.states import NodeState, State

Verb = Literal["ship", "activate", "rollback"]
SCHEMA = 1
RETAINED_JOURNALS = 20


class JournalHeader(TypedDict, total=False):
    """The first line of a journal. schema and run: only in the file."""

    schema: int
    run: str
    verb: Verb
    name: str
    key: str
    on: str
    inventory: str | None
    nodes: list[str]


class JournalEvent(TypedDict, total=False):
    """A change of a node's state. stage, reason, message: of a failure."""

    at: float
    node: str
    state: State
    stage: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RecordedShipment:
    """A journal that was read. states: the latest of each node."""

    path: Path
    header: JournalHeader
    states: Mapping[str, NodeState]


class ShipJournal:
    """The journal of a run, open for writing. Its file is line-buffered: what was recorded is not
    lost when this process is killed."""

    def __init__(self, path: Path, run_id: str, file: IO[str]) -> None:
        self.path, self.run_id, self._file = path, run_id, file

    def record(self, node: str, state: NodeState) -> None:
        line: JournalEvent = {"at": round(time.time(), 3), "node": node, "state": state.state}
        if state.failure is not None:
            line.update(asdict(state.failure))  # type: ignore[typeddict-item]
        self._file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


def new_run_id() -> str:
    """Sorts by time; two runs in one second differ."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def create(folder: Path, run_id: str, header: JournalHeader) -> ShipJournal:
    """Begin the journal of a run. Removes the oldest journals of this environment."""
    make_private_directory(folder)
    for old in sorted(folder.glob("*.jsonl"))[: -RETAINED_JOURNALS + 1]:
        old.unlink()
    path = folder / f"{run_id}.jsonl"
    # Whoever may write to it decides which nodes.yml `--resume` reads.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8", buffering=1)
    file.write(json.dumps({"schema": SCHEMA, "run": run_id, **header}) + "\n")
    journal = ShipJournal(path, run_id, file)
    journal.sync()
    return journal


def reopen(recorded: RecordedShipment) -> ShipJournal:
    """Go on with the journal of an earlier run."""
    file = recorded.path.open("a", encoding="utf-8", buffering=1)
    return ShipJournal(recorded.path, recorded.header["run"], file)


def latest(folder: Path) -> RecordedShipment | None:
    """The newest journal of a ship in a folder; None if there is none. Raises IntegrityError."""
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        recorded = read(path)
        if recorded.header["verb"] == "ship":
            return recorded
    return None


def read(path: Path) -> RecordedShipment:
    """A journal. Its last line may have been cut off when the machine lost power. Raises
    IntegrityError."""
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(parse_json(text))
        except ValueError as error:
            if number < len(texts) or number == 1:
                raise _damaged(path, f"line {number} is not JSON") from error
    problem = schema_error({"lines": lines}, "ship-journal")
    if problem:
        raise _damaged(path, problem)
    header: JournalHeader = lines[0]
    events: list[JournalEvent] = lines[1:]
    states = {}
    for event in events:
        failure = None
        if "reason" in event:
            if event["reason"] not in REASONS:
                raise _damaged(
                    path, f"{event['reason']!r} is not a reason that this provision knows"
                )
            failure = NodeFailure(
                stage=event["stage"], reason=event["reason"], message=event["message"]
            )
        states[event["node"]] = NodeState(state=event["state"], failure=failure)
    return RecordedShipment(path=path, header=header, states=states)


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(f"{path}: {problem}.", advice="Ship without --resume.")
