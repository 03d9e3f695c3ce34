"""The record of a shipment on this machine: one line for each change of a node's state, on the disk
before the next stage begins. `--resume` reads it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from provision.cluster.failures import REASONS, NodeFailure
from provision.core.errors import IntegrityError
from provision.core.json_text import parse_json
from provision.core.paths import make_private_directory
from provision.core.schema import schema_error
from provision.workflow.ship.states import NodeState, State

SCHEMA = 1
KEPT_JOURNALS = 20


@dataclass(frozen=True, kw_only=True)
class RecordedShipment:
    """What a journal says. header: the first line: verb, key, nodes and options of the run."""

    path: Path
    header: Mapping[str, Any]
    states: Mapping[str, NodeState]

    @property
    def run_id(self) -> str:
        return str(self.header["run"])


class ShipJournal:
    """The journal of a run, open for writing. Its file is line-buffered: what was recorded is not
    lost when this process is killed."""

    def __init__(self, path: Path, run_id: str, file: IO[str]) -> None:
        self.path, self.run_id, self._file = path, run_id, file

    def record(self, node: str, state: NodeState) -> None:
        line: dict[str, Any] = {"at": round(time.time(), 3), "node": node, "state": state.state}
        if state.failure is not None:
            line["stage"] = state.failure.stage
            line["reason"] = state.failure.reason
            line["message"] = state.failure.message
        self._file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


def new_run_id() -> str:
    """Sorts by time; two runs in one second differ."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def create(folder: Path, run_id: str, header: Mapping[str, Any]) -> ShipJournal:
    """Begin the journal of a run. Removes the oldest journals of this environment."""
    make_private_directory(folder)
    for old in sorted(folder.glob("*.jsonl"))[: -KEPT_JOURNALS + 1]:
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
    return ShipJournal(recorded.path, recorded.run_id, file)


def latest(folder: Path, verb: str = "ship") -> RecordedShipment | None:
    """The newest journal of a verb in a folder; None if there is none. Raises IntegrityError."""
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        recorded = read(path)
        if recorded.header["verb"] == verb:
            return recorded
    return None


def read(path: Path) -> RecordedShipment:
    """A journal. Its last line may have been cut off when the machine lost power. Raises
    IntegrityError."""
    lines = []
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, text in enumerate(texts):
        try:
            lines.append(parse_json(text))
        except ValueError as error:
            if number == len(texts) - 1 and lines:
                break
            raise IntegrityError(
                f"{path}: line {number + 1} is not JSON.", advice="Ship without --resume."
            ) from error
    problem = schema_error({"lines": lines}, "ship-journal")
    if problem:
        raise IntegrityError(f"{path}: {problem}.", advice="Ship without --resume.")
    states = {}
    for line in lines[1:]:
        if line.get("reason", "bad-answer") not in REASONS:
            raise IntegrityError(
                f"{path}: {line['reason']!r} is no reason that this provision knows.",
                advice="Ship without --resume.",
            )
        states[line["node"]] = _state(line)
    return RecordedShipment(path=path, header=lines[0], states=states)


def _state(line: Mapping[str, Any]) -> NodeState:
    state: State = line["state"]
    failure = None
    if "reason" in line:
        failure = NodeFailure(stage=line["stage"], reason=line["reason"], message=line["message"])
    return NodeState(state=state, failure=failure)
