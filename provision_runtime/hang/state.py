"""What a rank is doing, from two looks at it. Pure, but for lines of source that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import model, source
from .model import Collective, Frame, Thread
from .stacks import main_thread, user_frame

if TYPE_CHECKING:
    from .processes import Activity

# A share of one core below which a process is idle: polling threads of torch and of loggers need less.
IDLE_SHARE = 0.05
IDLE_BYTES = 1 << 16
DEBUGGERS = ("/pdb.py", "/ipdb/", "/pudb/", "IPython/terminal/debugger.py", "/debugpy/")
DATA_LOADER = "torch/utils/data/dataloader.py"
COLLECTIVE_CODE = ("torch/distributed/", "torch/nn/parallel/distributed.py")
# Not collectives, though they are in that folder.
LAUNCHERS = ("torch/distributed/run.py", "torch/distributed/elastic/", "torch/distributed/launch")
WRAPPERS = ("torch/_ops.py", "torch/distributed/c10d_logger.py", "/hang/record.py")
BACKWARD = "_engine_run_backward"
# Older torch calls the engine in `backward` itself.
BACKWARD_CODE = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
GRADIENTS = "all_reduce of gradients"


@dataclass(frozen=True)
class Look:
    """A rank at one moment. reason: why there are no threads. waits: files that it and what it started
    wait for."""

    activity: Activity
    threads: list[Thread]
    reason: str
    waits: list[model.Worker]


@dataclass(frozen=True)
class Judgment:
    """The fields of RankState that are judged."""

    kind: str
    detail: str = ""
    line: Frame | None = None
    collective: Collective | None = None


def judge(
    pid: int, first: Look, last: Look, calls: list[Collective], observed_s: float
) -> Judgment:
    """What the rank `pid` did between two looks. calls: that it has recorded, the latest last."""
    before, after = main_thread(first.threads).frames, main_thread(last.threads).frames
    frames = [frame for frame in after if frame.line]
    line = user_frame(frames)
    if last.activity.state in "Tt":
        return Judgment(model.STOPPED, "by a signal or a debugger", line)
    own_wait = next((wait for wait in last.waits if wait.pid == pid), None)
    if own_wait and any(wait.pid == pid for wait in first.waits):
        return Judgment(model.DISK, f"{own_wait.path or 'a file'}{on_mount(own_wait)}", line)
    if not frames:
        return Judgment(model.UNKNOWN, last.reason or "no Python in its main thread")
    if any(name in frame.file for frame in frames for name in DEBUGGERS):
        outside = [f for f in frames if not any(name in f.file for name in DEBUGGERS)]
        return Judgment(model.DEBUGGER, "waits for input at its prompt", user_frame(outside))
    has_moved = [f for f in before if f.line] != frames
    cpu_s = last.activity.cpu_s - first.activity.cpu_s
    is_busy = cpu_s > IDLE_SHARE * observed_s
    is_busy = is_busy or last.activity.read - first.activity.read > IDLE_BYTES
    open_call = next((call for call in calls[-1:] if not call.is_complete), None)
    collective = collective_of(frames, after)
    if collective and not has_moved:
        if open_call and (open_call.line or line) == line:
            collective = open_call
        return Judgment(model.COLLECTIVE, "transfers" if is_busy else "", line, collective)
    if open_call and open_call.origin == "flight recorder" and not has_moved:
        return Judgment(model.COLLECTIVE, "", open_call.line or line, open_call)
    if has_moved or is_busy:
        share = f"{100 * cpu_s / observed_s:.0f} % of a core"
        return Judgment(model.RUNNING, share if is_busy else "its stack has changed", line)
    if any(DATA_LOADER in frame.file for frame in frames):
        waits = [wait for wait in last.waits if wait.pid != pid]
        detail = "no worker delivers a batch"
        if waits:
            detail = f"worker {waits[0].pid} waits for {waits[0].path or 'a file'}"
            detail += on_mount(waits[0])
        return Judgment(model.DATA_LOADER, detail, line)
    if line and "sleep(" in line.source and frames[0] == line:
        if source.is_in_while(line):
            return Judgment(model.WAITING, "sleeps in a while loop", line)
        return Judgment(model.RUNNING, "sleeps", line)
    handler = next((frame for frame in frames if source.is_in_handler(frame)), None)
    if handler:
        return Judgment(model.EXCEPTION, f"in the except block at line {handler.line}", line)
    return Judgment(model.WAITING, f"in {frames[0].function}", line)


def collective_of(frames: list[Frame], native: list[Frame]) -> Collective | None:
    """The collective that a thread waits in, by its stack: innermost first, `native` with frames of
    native code."""
    line = user_frame(frames)
    functions = " ".join(frame.function for frame in native if not frame.line)
    inner = [frame for frame in frames if not any(name in frame.file for name in WRAPPERS)]
    operations = []
    for frame in inner:
        if not any(name in frame.file for name in COLLECTIVE_CODE):
            break
        operations.append(frame)
    if operations and not any(name in operations[0].file for name in LAUNCHERS):
        calls = [frame for frame in operations if frame.file.endswith("distributed_c10d.py")]
        return Collective(op=(calls or operations[:1])[-1].function, line=line)
    is_backward = any(name in inner[0].file for name in BACKWARD_CODE) if inner else False
    if is_backward or "c10d::Reducer" in functions:
        return Collective(op=GRADIENTS, line=line)
    return Collective(op="wait", line=line) if "c10d::" in functions else None


def on_mount(wait: model.Worker) -> str:
    return f" on {wait.mount}" if wait.mount else ""
