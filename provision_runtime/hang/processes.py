"""The processes of this user that are ranks, and what the kernel says of them (/proc)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..fs.mounts import Mount, mount_of, parse
from . import folder
from .model import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

# How launchers number ranks: torchrun (and our own launcher), Lightning's subprocess launcher, srun.
# Lightning does not number its first rank, which starts the others.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
TICKS = os.sysconf("SC_CLK_TCK")
# Waits of the kernel for a file: the names of its functions in wchan.
FILE_WAITS = re.compile(
    r"request_wait_answer|fuse|nfs|rpc_wait|cifs|folio_wait|page_bit|lookup|ceph"
)
# Calls whose first argument is a file, or its second the path (x86-64, arm64; asm/unistd.h).
_BY_FILE = {"0", "17", "217", "5", "8", "74", "63", "67", "61", "80"}


@dataclass(frozen=True)
class RankProcess:
    """A rank that runs. local_size: how many ranks its node has, 0 if unknown. stem: of the files that
    the hook left, which may not be there."""

    pid: int
    parent: int
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    job: str
    directory: str
    prefix: str
    stem: str
    environ: dict[str, str]


@dataclass(frozen=True)
class Activity:
    """What the kernel counts. cpu_s: of the process and of all that it started, without other ranks;
    own_cpu_s: of the process alone. switches: how often its main thread has begun to wait. read: bytes
    that all of them have read and written."""

    state: str
    cpu_s: float
    own_cpu_s: float
    switches: int
    read: int


def rank_processes(pid: int | None = None) -> list[RankProcess]:
    """This user's ranks, or the process `pid` and those below it. Raises no error for what ends
    meanwhile."""
    parents = {number: _parent(number) for number in _numbers()}
    ranks: dict[int, RankProcess] = {}
    for number in parents:
        try:
            if pid is None and os.stat(f"/proc/{number}").st_uid != os.getuid():
                continue
            process = _rank_process(number, parents[number])
        except (OSError, ValueError):
            continue
        if process and (pid is None or pid in (number, *ancestors(number, parents))):
            ranks[number] = process
    ranks = {number: rank for number, rank in ranks.items() if not _is_child(rank, ranks, parents)}
    _add_first_ranks(ranks, parents)
    return sorted(ranks.values(), key=lambda process: (process.job, process.rank))


def _rank_process(number: int, parent: int) -> RankProcess | None:
    with open(f"/proc/{number}/environ", "rb") as file:
        entries = file.read().decode(errors="replace").split("\0")
    environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    arguments = _arguments(number)
    program = os.path.basename(arguments[0]) if arguments else ""
    if not program.startswith("python"):
        return None
    for rank, size in RANK_VARIABLES:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            local_rank = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or "0"
            master = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
            return RankProcess(
                pid=number,
                parent=parent,
                rank=int(environ[rank]),
                world_size=int(environ[size]),
                local_rank=int(local_rank),
                local_size=int(environ.get("LOCAL_WORLD_SIZE") or 0),
                job=master if master != ":" else environ.get("SLURM_JOB_ID", ""),
                directory=os.readlink(f"/proc/{number}/cwd"),
                prefix=os.path.dirname(os.path.dirname(arguments[0])),
                stem=folder.stem_of(number),
                environ=environ,
            )
    return None


def _is_child(rank: RankProcess, ranks: dict[int, RankProcess], parents: dict[int, int]) -> bool:
    """Whether a process has its variables from a rank above it; or is a launcher that srun numbered,
    whose children are the ranks."""
    if "torch.distributed.run" in (line := " ".join(_arguments(rank.pid))) or "torchrun" in line:
        return True
    above = [ranks[number] for number in ancestors(rank.pid, parents) if number in ranks]
    return any(other.rank == rank.rank and other.job == rank.job for other in above)


def _add_first_ranks(ranks: dict[int, RankProcess], parents: dict[int, int]) -> None:
    """Lightning's first rank of a node is the process that started the others, without variables."""
    for process in list(ranks.values()):
        first = process.parent
        is_first = process.local_rank and "RANK" not in process.environ
        if is_first and first not in ranks and "SLURM_PROCID" not in process.environ:
            ranks[first] = replace(
                process, pid=first, parent=parents.get(first, 0), rank=0, local_rank=0
            )


def ancestors(number: int, parents: dict[int, int]) -> Iterator[int]:
    while parents.get(number):
        number = parents[number]
        yield number


def descendants(pid: int, ranks: set[int]) -> list[int]:
    """The processes that a rank has started, and those that they started; not other ranks."""
    children: dict[int, list[int]] = {}
    for number in _numbers():
        children.setdefault(_parent(number), []).append(number)
    found, queue = [], [pid]
    while queue:
        below = [number for number in children.get(queue.pop(), ()) if number not in ranks]
        found += below
        queue += below
    return found


def activity(pid: int, others: list[int]) -> Activity:
    """Raises OSError if the process is gone. others: what it has started."""
    fields = stat_fields(pid)
    own_cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    cpu_s, read = own_cpu_s, _bytes(pid)
    for number in others:
        try:
            other = stat_fields(number)
        except OSError:
            continue
        cpu_s += (int(other[11]) + int(other[12])) / TICKS
        read += _bytes(number)
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        switches = re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", file.read(), re.MULTILINE)
    return Activity(
        state=fields[0],
        cpu_s=cpu_s,
        own_cpu_s=own_cpu_s,
        switches=int(switches[0]) if switches else 0,
        read=read,
    )


def file_wait(pid: int) -> Worker | None:
    """What file a process waits for in the kernel, if it does: in uninterruptible sleep, or in a
    function of a file system that waits for its server.

    Does not touch the file. The path needs the permission to trace the process; the wait does not.
    """
    try:
        state = stat_fields(pid)[0]
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            wait = file.read()
    except OSError:
        return None
    if state != "D" and not FILE_WAITS.search(wait):
        return None
    path = _waited_path(pid)
    mount = _mount(pid, path) if path else None
    return Worker(pid=pid, state=state, path=path, mount=str(mount or ""))


def _waited_path(pid: int) -> str:
    """The file of the system call that a process is in; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="utf-8") as file:
            call, *arguments = file.read().split()
        if call in _BY_FILE:
            return os.readlink(f"/proc/{pid}/fd/{int(arguments[0], 16)}")
        with open(f"/proc/{pid}/mem", "rb") as memory:
            for argument in arguments[:2]:
                address = int(argument, 16)
                if 4096 < address < 1 << 47:
                    memory.seek(address)
                    text = memory.read(1024).split(b"\0")[0].decode(errors="replace")
                    if text.startswith("/"):
                        return text
                    if text.isprintable() and text:
                        return os.path.join(os.readlink(f"/proc/{pid}/cwd"), text)
    except (OSError, ValueError, IndexError):
        pass
    return ""


def _mount(pid: int, path: str) -> Mount | None:
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
            return mount_of(path, parse(file.read()))
    except OSError:
        return None


def stat_fields(pid: int) -> list[Any]:
    """The fields of proc(5)'s stat from the third on: state, parent and so on. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(stat_fields(pid)[1])
    except (OSError, IndexError):
        return 0


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _arguments(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def _bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", encoding="utf-8") as file:
            counts = re.findall(r"^[rw]char: (\d+)", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return sum(map(int, counts))
