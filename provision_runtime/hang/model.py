"""What is known of the ranks of a job on one node, as one JSON document.

`collect` makes it where the ranks run; `diagnosis` judges the documents of one node or of several.
"""

from __future__ import annotations

import os
from dataclasses import asdict, field
from typing import Any, Dict, List, Optional

from ..dataclass import frozen
from ..report import codec

SCHEMA = "provision.ranks/1"
# Where a call is known from (`Collective.origin`).
STACK, RECORD, FLIGHT_RECORDER = "stack", "record", "flight recorder"
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
ENDED = "ended"  # came to the end of its program
GONE = "gone"  # neither: killed, or ended by os._exit
UNKNOWN = "unknown"  # its stacks could not be read: `detail` has the reason


@frozen
class Frame:
    """A line of Python. is_user: neither the standard library's nor an installed package's."""

    function: str
    file: str
    line: int
    source: str = ""
    is_user: bool = False

    @property
    def text(self) -> str:
        """`train.py:88 loss.backward()`, with its line of source in quotes."""
        source = f" `{self.source[:60]}`" if self.source else ""
        return f"{os.path.basename(self.file)}:{self.line}{source}"


@frozen
class Thread:
    """frames: innermost first, with those of native code (no line) where py-spy could read them."""

    name: str
    is_main: bool
    frames: List[Frame]


@frozen
class Collective:
    """A call of torch.distributed. sequence: its number in its group, of those that were recorded;
    the shape is a list of sizes. Empty or None where only the stack is known.

    origin: `stack`, `record` (of `--record`) or `flight recorder`.
    """

    op: str
    origin: str = STACK
    sequence: Optional[int] = None
    group: str = ""
    shape: Optional[List[int]] = None
    dtype: str = ""
    line: Optional[Frame] = None
    is_complete: bool = False


@frozen
class Worker:
    """A process that waits for a file in the kernel, or a DataLoader's that waits otherwise. state: the
    kernel's letter; mount: of the path, as `type source mounted at point`; line: of the user's code;
    completed: requests that local disks have completed, if it waits for one of these."""

    pid: int
    state: str
    path: str = ""
    mount: str = ""
    line: Optional[Frame] = None
    completed: int = 0


@frozen
class RankError:
    """How a rank ended: its exception, or `crash` with the signal's name. time: seconds since 1970.
    frames: innermost first. parameters: names and shapes of the model whose DDP constructor failed."""

    type: str
    message: str
    time: float
    frames: List[Frame]
    parameters: Dict[str, List[int]] = field(default_factory=dict)


@frozen
class Rank:
    """Which rank of which job. local_size: how many its node has, 0 if unknown. launcher: the process
    that started it. job: where its ranks meet (MASTER_ADDR:MASTER_PORT). pid: 0 if it is unknown."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    launcher: int
    pid: int
    job: str
    host: str
    directory: str


@frozen
class RankState(Rank):
    """What a rank does. kind: one of those above; detail: its circumstances (a mount, a reason).

    line: where its own code is, the innermost line of the user's. calls: the last collectives that it
    began, the latest last. waits: for files, of the rank and of what it has started.
    """

    kind: str
    detail: str = ""
    line: Optional[Frame] = None
    collective: Optional[Collective] = None
    threads: List[Thread] = field(default_factory=list)
    calls: List[Collective] = field(default_factory=list)
    waits: List[Worker] = field(default_factory=list)
    error: Optional[RankError] = None

    @property
    def frames(self) -> List[Frame]:
        """Of the Python code in which it is, or ended: innermost first."""
        if self.error:
            return self.error.frames
        threads = [thread for thread in self.threads if thread.is_main]
        return [frame for thread in threads for frame in thread.frames if frame.line]


@frozen
class Snapshot:
    """The ranks of one user on one node. notes: what could not be read, and how to change that."""

    schema: str
    host: str
    time: float
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
