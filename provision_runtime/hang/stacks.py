"""Stacks of a process's threads: by py-spy where it is installed and may trace, else by the signal on
which the hook has faulthandler write them."""

from __future__ import annotations

import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from . import folder
from .folder import SIGNAL
from .model import Frame, Thread

_FAULT_LINE = re.compile(
    r'(?:Current t|T)hread 0x\w+.*|  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)'
)
# Where code of others is: installed packages, the standard library, frozen and native modules.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+t?/|^<|^$")
NO_PERMISSION = (
    "py-spy may not trace them. kernel.yama.ptrace_scope decides who may (1: parents only, 2: root); a "
    "container needs CAP_SYS_PTRACE; only root may trace a setuid program."
)


# The variable with the path of py-spy, for a runtime that is not installed beside it.
PY_SPY = "PROVISION_PY_SPY"
# Else py-spy would stop a process that is stopped, and wait for that.
_NOT_STOPPING = ("--nonblocking",)
# Of a thread, innermost and outermost; of a process. A node's reply has a limit.
MAX_FRAMES, MAX_THREADS = 64, 64


class StacksUnreadable(Exception):
    """The reason why there are no stacks of a process."""


def py_spy() -> str:
    """Its path; empty if this machine has none. It is installed with the host's provision."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    programs = (os.environ.get(PY_SPY, ""), beside, shutil.which("py-spy") or "")
    return next((program for program in programs if os.access(program, os.X_OK)), "")


def dump(
    pid: int, stem: str, directory: str, timeout_s: float, is_stopped: bool = False
) -> list[Thread]:
    """All threads of a process.

    Args:
        stem: of the hook's files, or empty.
        directory: the working directory of the process, for file names that are relative.

    Raises:
        StacksUnreadable: neither py-spy nor the hook could read them.
    """
    try:
        return dump_by_py_spy(pid, directory, timeout_s, *_NOT_STOPPING[:is_stopped])
    except StacksUnreadable as error:
        if not stem or is_stopped:
            raise StacksUnreadable(f"{error}; the hook of provision cannot answer either") from None
    return _dump_by_signal(pid, stem, directory, timeout_s)


def variables(
    pid: int, timeout_s: float, is_stopped: bool = False
) -> list[tuple[Frame, dict[str, str]]]:
    """The frames of a process's main thread, innermost first, each with its variables as text. Raises
    StacksUnreadable."""
    entries = _run_py_spy(pid, timeout_s, "--locals", *_NOT_STOPPING[:is_stopped])
    frames = []
    for frame in next((entry["frames"] for entry in entries if _is_main(entry)), ()):
        values = {str(local["name"]): str(local["repr"]) for local in frame["locals"] or ()}
        frames.append((frame_at(frame["name"], frame["filename"], frame["line"], ""), values))
    return frames


def dump_by_py_spy(pid: int, directory: str, timeout_s: float, *options: str) -> list[Thread]:
    """All threads of a process. With --native, with the frames of native code, too: py-spy takes a
    second of CPU for these. Raises StacksUnreadable."""
    return parse_py_spy(_run_py_spy(pid, timeout_s, *options), directory)


def _run_py_spy(pid: int, timeout_s: float, *options: str) -> Any:
    if not (program := py_spy()):
        raise StacksUnreadable("there is no py-spy on this machine")
    arguments = [program, "dump", "--json", "--pid", str(pid), *options]
    try:
        result = subprocess.run(
            arguments, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if not result.returncode:
            return json.loads(result.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise StacksUnreadable(f"py-spy failed: {error}") from error
    if "ermission" in result.stderr:
        raise StacksUnreadable(NO_PERMISSION)
    raise StacksUnreadable(f"py-spy failed: {result.stderr.strip()[-200:]}")


def parse_py_spy(entries: list[Any], directory: str) -> list[Thread]:
    """entries: what `py-spy dump --json` prints."""
    threads = []
    for entry in entries:
        frames = [
            frame_at(frame["name"], frame["filename"], frame["line"], directory)
            for frame in entry["frames"]
        ]
        frames = [*frames[:MAX_FRAMES], *frames[MAX_FRAMES:][-MAX_FRAMES:]]
        threads.append(Thread(str(entry["thread_name"]), _is_main(entry), frames))
    return sorted(threads, key=lambda thread: not thread.is_main)[:MAX_THREADS]


def _is_main(entry: Any) -> bool:
    """Before Python 3.11, a stopped process shows no numbers of its threads."""
    number, name = entry["os_thread_id"], entry["thread_name"]
    return bool(number == entry["pid"] or (number is None and name == "MainThread"))


def _dump_by_signal(pid: int, stem: str, directory: str, timeout_s: float) -> list[Thread]:
    """The signal would end a process that does not handle it, so it is sent only if the kernel says that
    it does."""
    path = f"{stem}.stacks"
    try:
        start = os.path.getsize(path)
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            caught = re.findall(r"SigCgt:\s*(\w+)", status.read())
        if not int(caught[0], 16) >> (SIGNAL - 1) & 1:
            raise StacksUnreadable("the program has replaced the hook's signal handler")
        os.kill(pid, SIGNAL)
        end, text = time.monotonic() + timeout_s, ""
        while time.monotonic() < end:
            time.sleep(0.1)
            previous = text
            if (text := folder.read(path, start).decode(errors="replace")) and text == previous:
                return parse_fault_handler(text, directory)
    except OSError as error:
        raise StacksUnreadable(f"the hook's files cannot be read: {error}") from error
    raise StacksUnreadable(f"the hook wrote no stacks within {timeout_s:.0f} s of its signal")


def parse_fault_handler(text: str, directory: str) -> list[Thread]:
    """faulthandler writes the main thread last. At least one thread, maybe without frames."""
    frames: list[list[Frame]] = [[]]
    for match in filter(None, map(_FAULT_LINE.fullmatch, text.splitlines())):
        if match["file"] is None:
            frames.append([])
        else:
            frame = frame_at(match["function"], match["file"], int(match["line"]), directory)
            frames[-1].append(frame)
    threads = [Thread(name="", is_main=False, frames=thread) for thread in frames[1:-1]]
    return [*threads, Thread(name="MainThread", is_main=True, frames=frames[-1])]


def frame_at(function: str, file: str, line: int, directory: str) -> Frame:
    """A frame with its line of the source, and whether it is the user's code. Native code has line 0."""
    if not file.endswith((".py", ">")):
        return Frame(function=function, file=file, line=0)
    if _FOREIGN.search(file):
        return Frame(function=function, file=file, line=line)
    path = os.path.join(directory, file)
    return Frame(
        function=function,
        file=path,
        line=line,
        source=linecache.getline(path, line).strip()[:200],
        is_user=True,
    )


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost line of the user's code; if all of it is installed, the outermost of a package."""
    packages = [frame for frame in frames if "-packages/" in frame.file]
    users = [frame for frame in frames if frame.is_user]
    return next(iter([*users, *packages[::-1]]), None)
