"""What is known of the ranks of a job on one node, as one JSON document.

`collect` makes it where the ranks run; `diagnosis` judges the documents of one node or of several.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional

from ..report import codec

SCHEMA = "provision.ranks/1"
# What a rank is doing (`RankState.kind`).
COLLECTIVE = "collective"  # waits in a collective, or in backward for the gradients of others
RUNNING = "running"  # uses the CPU, or is at another line than a moment before
WAITING = "waiting"  # neither; in no collective
DATA_LOADER = "data-loader"  # waits for workers of a DataLoader
DISK = "disk"  # a thread is in uninterruptible sleep (D) on a file
EXCEPTION = "exception"  # handles an exception, or ends because of one
DEBUGGER = "debugger"  # waits for input at a prompt of pdb
STOPPED = "stopped"  # by a signal (SIGSTOP, Ctrl-Z) or by a tracer
FAILED = "failed"  # ended with an error, which the hook wrote down
GONE = "gone"  # has ended; no error is known
# Of GONE: it came to the end of its program.
ENDED = "came to its end by itself"
UNKNOWN = "unknown"  # its stacks could not be read: `detail` has the reason


@dataclass(frozen=True)
class Frame:
    """A line of Python. is_user: neither the standard library's nor an installed package's."""

    function: str
    file: str
    line: int
    source: str = ""
    is_user: bool = False


@dataclass(frozen=True)
class Thread:
    """frames: innermost first, with those of native code (no line) where py-spy could read them."""

    name: str
    is_main: bool
    frames: List[Frame]


@dataclass(frozen=True)
class Collective:
    """A call of torch.distributed. sequence: its number in its group, of those that were recorded;
    the shape is a list of sizes. Empty or None where only the stack is known.

    origin: `stack`, `record` (of `--record`) or `flight recorder`.
    """

    op: str
    origin: str = "stack"
    sequence: Optional[int] = None
    group: str = ""
    shape: Optional[List[int]] = None
    dtype: str = ""
    line: Optional[Frame] = None
    is_complete: bool = False


@dataclass(frozen=True)
class Worker:
    """A child process of a rank. state: the kernel's letter; path: the file that it waits for;
    mount: the file system of it, as `type source mounted at point`."""

    pid: int
    state: str
    frame: Optional[Frame] = None
    path: str = ""
    mount: str = ""


@dataclass(frozen=True)
class RankError:
    """How a rank ended: its exception, or the signal that killed it. time: seconds since 1970.
    frames: innermost first."""

    type: str
    message: str
    time: float
    frames: List[Frame]


@dataclass(frozen=True)
class RankState:
    """One rank. kind: one of those above; detail: its circumstances (a mount, a signal, a reason).

    line: where its own code is, the innermost line of the user's. calls: the last collectives that it
    began, the latest last. parameters: names and shapes of the model that it gave to DDP, if known.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    job: str
    kind: str
    detail: str = ""
    line: Optional[Frame] = None
    collective: Optional[Collective] = None
    threads: List[Thread] = field(default_factory=list)
    calls: List[Collective] = field(default_factory=list)
    workers: List[Worker] = field(default_factory=list)
    error: Optional[RankError] = None
    parameters: Dict[str, List[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The ranks of one user on one node. job: where the ranks meet (MASTER_ADDR:MASTER_PORT).

    observed_s: how long they were observed. notes: what could not be read, and how to change that.
    """

    schema: str
    host: str
    time: float
    observed_s: float
    ranks: List[RankState]
    notes: List[str] = field(default_factory=list)


def to_json(snapshot: Snapshot) -> Dict[str, Any]:
    return asdict(snapshot)


def from_json(document: Any) -> Snapshot:
    """Raises ValueError, which names the entry, for what is not a document of this schema."""
    snapshot: Snapshot = codec.decode(Snapshot, document, "ranks")
    if snapshot.schema != SCHEMA:
        raise ValueError(f"at ranks.schema: it is {snapshot.schema!r}, not {SCHEMA}")
    return snapshot
