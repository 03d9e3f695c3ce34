"""What a rank is doing, from two looks at it. Pure, but for lines of source that it reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..dataclass import frozen
from . import source
from .model import (
    COLLECTIVE,
    DATA_LOADER,
    DEBUGGER,
    DISK,
    EXCEPTION,
    FLIGHT_RECORDER,
    RUNNING,
    STOPPED,
    UNKNOWN,
    WAITING,
    Collective,
    Frame,
    Rank,
    RankState,
    Thread,
    Worker,
)
from .stacks import user_frame

if TYPE_CHECKING:
    from .processes import Activity

# A share of one core below which a process is idle: polling threads of torch and of loggers need less.
IDLE_SHARE = 0.05
IDLE_BYTES = 1 << 16
DEBUGGERS = ("/pdb.py", "/ipdb/", "/pudb/", "IPython/terminal/debugger.py", "/debugpy/")
# Lines of the user's that read what somebody types.
PROMPT = re.compile(r"\binput\(|stdin\.read|getpass\(|\.(?:prompt|confirm|ask|embed|interact)\(")
LOADER_CODE = "torch/utils/data/dataloader.py"
COLLECTIVE_CODE = ("torch/distributed/", "torch/nn/parallel/distributed.py")
# Not collectives, though they are in that folder.
LAUNCHERS = ("torch/distributed/run.py", "torch/distributed/elastic/", "torch/distributed/launch")
WRAPPERS = (
    "torch/_ops.py",
    "torch/_library/",
    "torch/distributed/c10d_logger.py",
    "/hang/record.py",
)
# Older torch calls the engine in `backward` itself.
BACKWARD_CODE = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
GRADIENTS = "all_reduce of gradients"
# The detail of a collective in which bytes move.
TRANSFERS = "transfers"


@frozen
class Look:
    """A rank at one moment. reason: why there are no threads. waits: files that it and what it started
    wait for."""

    pid: int
    activity: Activity
    threads: list[Thread]
    reason: str
    waits: list[Worker]

    @property
    def frames(self) -> list[Frame]:
        """Of the main thread: innermost first, with those of native code."""
        return next((thread.frames for thread in self.threads if thread.is_main), [])


def is_unclear(first: Look | None, last: Look | None, observed_s: float) -> bool:
    """Whether a rank waits, and Python's frames alone do not show in which collective."""
    if not first or not last or not last.frames or first.frames != last.frames:
        return False
    return not collective_of(last.frames) and not _is_busy(first, last, observed_s)


def is_in_loader(look: Look | None) -> bool:
    """Whether a rank waits for workers of a DataLoader."""
    return look is not None and any(LOADER_CODE in frame.file for frame in look.frames)


def _is_busy(first: Look, last: Look, observed_s: float) -> bool:
    before, after = first.activity, last.activity
    is_computing = after.cpu_s - before.cpu_s > IDLE_SHARE * observed_s
    is_computing |= before.state == after.state == "R"  # the machine may be overloaded
    return is_computing or after.read - before.read > IDLE_BYTES


def judge(
    rank: Rank, first: Look, last: Look, calls: list[Collective], observed_s: float
) -> RankState:
    """What a rank did between two looks. calls: that it has recorded, the latest last."""
    frames = [frame for frame in last.frames if frame.line]
    line = user_frame(frames)
    # Not by function: py-spy and faulthandler name nested ones differently.
    before = [(frame.file, frame.line) for frame in first.frames if frame.line]
    is_busy = _is_busy(first, last, observed_s)
    loop = not is_busy and source.polling_loop(line)
    is_polling = bool(loop) and loop == source.polling_loop(user_frame(first.frames))
    has_moved = not is_polling and before != [(frame.file, frame.line) for frame in frames]
    is_idle = not (has_moved or is_busy)
    is_asking = is_idle and (
        any(map(_is_at_prompt, frames)) or PROMPT.search((line and line.source) or "")
    )
    collective = None if has_moved else collective_of(last.frames)
    if is_idle and not (collective or is_asking or is_in_loader(last)):
        # The rank's code may wait in a thread of its own.
        calls_of_threads = [collective_of(t.frames) for t in last.threads if not t.is_main]
        of_user = [call for call in calls_of_threads if call and call.line and call.line.is_user]
        collective = next(iter(of_user), None)
        line = collective.line if collective else line
    last_call = calls[-1] if calls and not calls[-1].is_complete and not has_moved else None
    if last_call and (last_call.origin == FLIGHT_RECORDER or last_call.line == line):
        collective, line = last_call, last_call.line or line
    wait = next((wait for wait in last.waits if wait.pid == rank.pid or not collective), None)
    is_stuck = wait is not None and wait in first.waits
    kind, detail = WAITING, f"in {frames[0].function}" if frames else ""
    # Twice, because py-spy of another user of this page stops it for a moment.
    if first.activity.state in "Tt" and last.activity.state in "Tt":
        kind, detail = STOPPED, "by a signal or a tracer"
    elif wait and wait.pid == rank.pid and not is_busy:
        # A disk that completes requests may be slow, such as at the end of a save.
        kind, detail = DISK if is_stuck else RUNNING, _describe(wait)
    elif not frames or not before:
        kind = UNKNOWN
        detail = last.reason or first.reason or "no Python in its main thread"
    elif is_asking and not collective:
        kind, detail = DEBUGGER, "waits for input"
        line = user_frame([f for f in frames if not any(name in f.file for name in DEBUGGERS)])
    elif collective:
        kind, detail = COLLECTIVE, TRANSFERS if is_busy else ""
    elif not is_idle:
        kind, detail = RUNNING, ""
    elif is_in_loader(last):
        kind = DATA_LOADER
        detail = f"worker {wait.pid} {_describe(wait)}" if wait else "no worker delivers a batch"
        if wait and wait.line and "sleep(" in wait.line.source:
            kind = RUNNING
    elif is_polling:
        detail = "in a loop that sleeps and looks again"
    elif line and frames[0] == line and "sleep(" in line.source:
        kind, detail = RUNNING, "sleeps"
    elif any(map(source.is_in_handler, frames)):
        kind, detail = EXCEPTION, "in an except block"
    return RankState(
        **vars(rank),
        kind=kind,
        detail=detail,
        line=line,
        collective=collective,
        threads=last.threads,
        calls=calls,
        waits=last.waits,
    )


def _is_at_prompt(frame: Frame) -> bool:
    """Not while a debugger is imported, as torch.distributed does."""
    return frame.function != "<module>" and any(name in frame.file for name in DEBUGGERS)


def line_of_worker(threads: list[Thread]) -> Frame | None:
    """The line of the user's dataset in which a DataLoader's worker is; None if it waits for work."""
    for thread in threads:
        loops = [n for n, f in enumerate(thread.frames) if f.function == "_worker_loop"]
        if thread.is_main and loops:
            return next((frame for frame in thread.frames[: loops[0]] if frame.is_user), None)
    return None


def collective_of(frames: list[Frame]) -> Collective | None:
    """The collective that a thread waits in, by its stack, innermost first."""
    native = " ".join(frame.function for frame in frames if not frame.line)
    frames = [f for f in frames if f.line and not any(name in f.file for name in WRAPPERS)]
    operations = []
    for frame in frames:
        if not any(name in frame.file for name in COLLECTIVE_CODE):
            break
        operations.append(frame)
    line = user_frame(frames)
    if operations and not any(name in operations[0].file for name in LAUNCHERS):
        calls = [frame for frame in operations if frame.file.endswith("distributed_c10d.py")]
        return Collective(op=(calls or operations[:1])[-1].function, line=line)
    is_backward = bool(frames) and any(name in frames[0].file for name in BACKWARD_CODE)
    if is_backward or "c10d::Reducer" in native:
        return Collective(op=GRADIENTS, line=line)
    # Of a Work, or of the store: Python's own wait() has a frame.
    is_work = bool(frames) and frames[0].is_user and ".wait(" in frames[0].source
    return Collective(op="wait", line=line) if "c10d::" in native or is_work else None


def _describe(wait: Worker) -> str:
    if wait.line:
        verb = "is stopped at" if wait.state in "Tt" else "stays at"
        return f"{verb} {wait.line.text}"
    mount = f" on {wait.mount}" if wait.mount else ""
    return f"waits for {wait.path or 'a file'}{mount}"
