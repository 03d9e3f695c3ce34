"""The processes of this user that are ranks, and what the kernel says of them (/proc)."""

from __future__ import annotations

import glob
import os
import re
import socket
from dataclasses import replace

from ..dataclass import frozen
from ..fs.mounts import mount_of, parse
from . import folder
from .model import Rank, Worker

TICKS = os.sysconf("SC_CLK_TCK")
# The kernel's functions in which it waits for a file system's server (wchan).
FILE_WAITS = re.compile(r"request_wait_answer|fuse|nfs|rpc_wait|cifs|folio_wait|page_bit|ceph")
MAX_PATH = 4096
# The first argument of openat and others: the current folder (fcntl.h), as an unsigned number.
AT_FDCWD = 0xFFFFFF9C


@frozen
class RankProcess:
    """A rank that runs. prefix: of its environment. root: before its paths, if it may be read: it may
    be in a container. stem: of the files of the hook; empty if it has none."""

    rank: Rank
    environ: dict[str, str]
    prefix: str
    root: str
    stem: str


@frozen
class Activity:
    """What the kernel counts for a rank and all that it has started: CPU seconds, and bytes read (those
    of mapped files, too) and written. state: its letter of proc(5)."""

    state: str
    cpu_s: float
    read: int


def rank_processes(pid: int | None = None) -> list[RankProcess]:
    """This user's ranks, or those among a process and those below it, whoever runs it."""
    parents = parents_of_all()
    ranks: dict[int, RankProcess] = {}
    for number, *ancestors in sorted((above(n, parents) for n in parents), key=len):
        try:
            is_selected = belongs_to_user(number) if pid is None else pid in (number, *ancestors)
            environ = environ_of(number) if is_selected else {}
            is_rank = "WORLD_SIZE" in environ and ("RANK" in environ or "LOCAL_RANK" in environ)
            if is_rank and is_python(number):
                process = rank_process(number, parents[number], environ)
                above_it = [ranks[other].rank.rank for other in ancestors if other in ranks]
                # What a rank starts has its variables.
                if process.rank.rank not in above_it:
                    ranks[number] = process
        except (OSError, ValueError, IndexError):  # it has ended, or numbers that are none
            continue
    for process in list(ranks.values()):
        parent, rank = process.rank.launcher, process.rank
        # Lightning numbers only the ranks that its first one starts.
        if "RANK" not in process.environ and parent not in ranks and is_python(parent):
            first = replace(rank, rank=rank.rank - rank.local_rank, local_rank=0, pid=parent)
            launcher = parents.get(parent, 0)
            ranks[parent] = replace(process, rank=replace(first, launcher=launcher), stem="")
    return list(ranks.values())


def environ_of(number: int) -> dict[str, str]:
    """The variables with which a process started. Raises OSError."""
    return dict(entry.split("=", 1) for entry in entries(number, "environ") if "=" in entry)


def rank_process(number: int, launcher: int, environ: dict[str, str]) -> RankProcess:
    """A process whose variables say which rank it is. Raises OSError if it has ended."""
    get = environ.get
    local_rank = get("LOCAL_RANK", "0")
    rank = Rank(
        rank=int(get("RANK", local_rank)),
        world_size=int(environ["WORLD_SIZE"]),
        local_rank=int(local_rank),
        local_size=int(get("LOCAL_WORLD_SIZE", "0")),
        launcher=launcher,
        pid=number,
        job=f"{get('MASTER_ADDR', '')}:{get('MASTER_PORT', '')}",
        host=socket.gethostname(),
        directory=os.readlink(f"/proc/{number}/cwd"),
    )
    root = f"/proc/{number}/root"
    root = root if os.path.exists(f"{root}/tmp") else ""
    user = os.stat(f"/proc/{number}").st_uid
    files = root + folder.rank_folder(user)
    stems = glob.glob(f"{files}/*,{number},{folder.start_time(number)},*.stacks")
    if stems and os.lstat(files).st_uid != user:
        stems = []  # somebody else's
    stem = stems[0][: -len(".stacks")] if stems else ""
    program = entries(number, "cmdline")[0]
    return RankProcess(rank, environ, os.path.dirname(os.path.dirname(program)), root, stem)


def belongs_to_user(number: int) -> bool:
    """Whether a process is this user's. Raises OSError if it has ended."""
    return os.stat(f"/proc/{number}").st_uid == os.getuid()


def is_python(number: int) -> bool:
    return os.path.basename(entries(number, "cmdline")[0]).startswith("python")


def above(number: int, parents: dict[int, int]) -> list[int]:
    """A process and those that started it, itself first."""
    above = [number]
    while parents.get(above[-1]):
        above.append(parents[above[-1]])
    return above


def parents_of_all() -> dict[int, int]:
    return {int(name): _parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def descendants(pid: int, ranks: set[int], parents: dict[int, int]) -> list[int]:
    """The processes that a rank has started, and those that they started; not other ranks."""
    below = []
    for number in parents:
        ancestors = above(number, parents)[1:]
        if pid in ancestors and not ranks & {number, *ancestors[: ancestors.index(pid)]}:
            below.append(number)
    return below


def activity(pid: int, children: list[int]) -> Activity:
    """Raises OSError if the process is gone. children: what it has started."""
    cpu_s, count = 0.0, 0
    for number in (pid, *children):
        try:
            fields = _stat(number)
            cpu_s += (int(fields[11]) + int(fields[12])) / TICKS
            counts = re.findall(r"(?:[rw]char|read_bytes): (\d+)", read(number, "io"))
            count += sum(map(int, counts))
        except OSError:
            continue
    return Activity(state=_stat(pid)[0], cpu_s=cpu_s, read=count)


def file_wait(pid: int) -> Worker | None:
    """What file a process waits for in the kernel, if it does: in uninterruptible sleep, or in a
    function of a file system that waits for its server.

    Does not touch the file. The path needs the permission to trace the process; the wait does not.
    """
    try:
        if (state := _stat(pid)[0]) != "D" and not FILE_WAITS.search(read(pid, "wchan")):
            return None
        path = _waited_path(pid)
        mount = mount_of(path, parse(read(pid, "mountinfo"))) if path else None
        is_local = mount and not mount.is_network and not mount.type.startswith("fuse")
        completed = _completed_requests() if is_local else 0
    except (OSError, ValueError, IndexError):
        return None
    return Worker(pid, state, path, str(mount or ""), completed=completed)


def _completed_requests() -> int:
    """Of all disks: reads and writes (the kernel's iostats.rst)."""
    with open("/proc/diskstats", encoding="utf-8") as file:
        rows = [line.split() for line in file]
    return sum(int(row[3]) + int(row[7]) for row in rows)


def _waited_path(pid: int) -> str:
    """The file of the system call that a process is in: its first argument is a descriptor, or one of
    the first two the address of a path. Empty if it cannot be read."""
    try:
        _, *arguments = read(pid, "syscall").split()
        with open(f"/proc/{pid}/mem", "rb") as memory:
            for address in [int(argument, 16) for argument in arguments[:2]]:
                if address < MAX_PATH and os.path.lexists(f"/proc/{pid}/fd/{address}"):
                    return os.readlink(f"/proc/{pid}/fd/{address}")
                if AT_FDCWD < address < 1 << 47:
                    memory.seek(address)
                    path = memory.read(MAX_PATH).partition(b"\0")[0].decode()
                    return os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
    except (OSError, ValueError):
        pass
    return ""


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat from the third on: state, parent and so on. Raises OSError."""
    return read(pid, "stat").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


def entries(pid: int, name: str) -> list[str]:
    return read(pid, name).split("\0")


def read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
        return file.read()
