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

from .folder import SIGNAL
from .model import Frame, Thread

_FAULT_THREAD = re.compile(r"^(Current t|T)hread 0x[0-9a-f]+(?: \[(?P<name>.*)\])?")
_FAULT_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
# Where code of others is: installed packages, the standard library, frozen and native modules.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+t?/|^<|^$")
PTRACE_ADVICE = (
    "py-spy may not trace it: {reason}. The kernel's kernel.yama.ptrace_scope decides who may "
    "(1: parents only; 2: root only), in a container CAP_SYS_PTRACE, and a setuid program only root."
)


class StacksUnreadable(Exception):
    """The reason why there are no stacks of a process."""


def py_spy() -> str:
    """Its program next to this Python or on PATH; empty if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def dump_by_py_spy(
    program: str, pid: int, directory: str, timeout_s: float, *, native: bool = False
) -> tuple[list[Thread], str]:
    """The threads, and the text as py-spy printed it. Raises StacksUnreadable.

    directory: the working directory of the process, for file names that are relative.
    """
    arguments = [program, "dump", "--json", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        result = subprocess.run(
            arguments, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StacksUnreadable(f"py-spy took more than {timeout_s:.0f} s") from error
    except OSError as error:
        raise StacksUnreadable(f"py-spy does not start: {error.strerror}") from error
    if result.returncode:
        reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
        if "ermission" in result.stderr:
            reason = PTRACE_ADVICE.format(reason=reason)
        raise StacksUnreadable(reason)
    try:
        return parse_py_spy(result.stdout, pid, directory), result.stdout
    except (ValueError, KeyError, TypeError) as error:
        raise StacksUnreadable(f"py-spy printed what is no list of threads: {error!r}") from error


def parse_py_spy(text: str, pid: int, directory: str) -> list[Thread]:
    """Raises ValueError, KeyError or TypeError for what `py-spy dump --json` does not print."""
    threads = []
    for entry in json.loads(text):
        frames = [
            frame_at(item["name"], item["filename"], item["line"], directory)
            for item in entry["frames"]
        ]
        name = entry["thread_name"] or str(entry["os_thread_id"])
        threads.append(Thread(name=name, is_main=entry["os_thread_id"] == pid, frames=frames))
    return threads


def dump_by_signal(
    pid: int, stem: str, directory: str, timeout_s: float
) -> tuple[list[Thread], str]:
    """The threads as the process's own faulthandler writes them. Raises StacksUnreadable.

    The signal would end a process that does not handle it, so it is sent only where the hook's file is
    there and the kernel says that the process catches it.
    """
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            caught = int(re.findall(r"SigCgt:\s*(\w+)", status.read())[0], 16)
        path = f"{stem}.stacks"
        start = os.path.getsize(path)
        if not caught >> (SIGNAL - 1) & 1:
            raise StacksUnreadable("it does not handle the hook's signal")
        os.kill(pid, SIGNAL)
    except (OSError, IndexError) as error:
        raise StacksUnreadable("provision's hook did not start in it") from error
    size, end = start, time.monotonic() + timeout_s
    while time.monotonic() < end:
        time.sleep(0.05)
        if size == os.path.getsize(path) > start:
            break
        size = os.path.getsize(path)
    if size == start:
        raise StacksUnreadable(f"it wrote no stacks within {timeout_s:.0f} s of the signal")
    text = _read_from(path, start)
    return parse_fault_handler(text, directory), text


def parse_fault_handler(text: str, directory: str) -> list[Thread]:
    """faulthandler writes the main thread last."""
    threads: list[Thread] = []
    for line in text.splitlines():
        head = _FAULT_THREAD.match(line)
        if head:
            threads.append(Thread(name=head["name"] or "", is_main=False, frames=[]))
        frame = _FAULT_FRAME.match(line)
        if frame and threads:
            threads[-1].frames.append(
                frame_at(frame["function"], frame["file"], int(frame["line"]), directory)
            )
    if threads:
        main = threads.pop()
        threads.append(Thread(name="MainThread", is_main=True, frames=main.frames))
    return threads


def _read_from(path: str, start: int) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return file.read()


def frame_at(function: str, file: str, line: int, directory: str) -> Frame:
    """A frame with its line of the source, and whether it is the user's code."""
    is_foreign = bool(_FOREIGN.search(file)) or not line
    if is_foreign:
        return Frame(function=function, file=file, line=line)
    path = os.path.join(directory, file)
    source = linecache.getline(path, line).strip()[:200]
    return Frame(function=function, file=path, line=line, source=source, is_user=True)


def main_thread(threads: list[Thread]) -> Thread:
    """The main thread; an empty one if there is none."""
    return next((t for t in threads if t.is_main), Thread(name="", is_main=True, frames=[]))


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost line of the user's code; of a program that is installed, the outermost line of a
    package."""
    users = [frame for frame in frames if frame.is_user]
    installed = [f for f in frames if "-packages/" in f.file and "/torch/" not in f.file]
    return next(iter([*users, *installed[::-1]]), None)
