"""Ranks that a program starts itself: by torch.multiprocessing.spawn, by Lightning's `ddp_spawn`, or as
processes of multiprocessing.

Their numbers are set after they start, so the kernel shows no RANK of them, or that of their parent. The
variables in their stacks have the numbers; only py-spy can read these.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..dataclass import frozen
from . import processes, stacks
from .model import ENDED, RankState
from .processes import RankProcess

SPAWN = "torch/multiprocessing/spawn.py"
# What the function of a rank calls its number, if torch does not start it.
NUMBERS = ("rank", "local_rank", "global_rank", "gpu")
# Functions of processes that work for others: of a DataLoader, a pool, an executor.
WORKERS = {"_worker_loop", "worker", "_process_worker"}
FREE_NUMBERS = "ranks whose number cannot be read have those that are free, as they were started"


@frozen
class Spawned:
    """processes: also the ranks that were known before, without those that only started others. ended:
    ranks that came to their end, as far as that is known."""

    processes: list[RankProcess]
    ended: list[RankState]
    notes: list[str]


@frozen
class _Descendant:
    """A process of multiprocessing. number: None if it cannot be read. is_torch: torch started it.
    is_read: whether its stack could be read."""

    pid: int
    number: int | None
    is_torch: bool
    is_read: bool = True


def all_ranks(pid: int | None, timeout_s: float) -> Spawned:
    """This user's ranks, or those among a process and those below it, whoever started them."""
    children: dict[int, list[int]] = defaultdict(list)
    by_variables = {process.rank.pid: process for process in processes.rank_processes(pid)}
    parents = processes.parents_of_all()
    for number, parent in parents.items():
        if number not in by_variables and _may_be_rank(number, parent, parent in by_variables):
            children[parent].append(number)
    result = Spawned([], [], [])
    for parent in sorted(children, key=lambda number: len(processes.above(number, parents))):
        above = set(processes.above(parent, parents))
        is_selected = pid in above or pid in children[parent]
        with suppress(OSError):  # it has ended
            is_selected |= pid is None and processes.belongs_to_user(parent)
        # What a rank starts is none.
        if is_selected and not above & {process.rank.pid for process in result.processes}:
            with ThreadPoolExecutor(8) as pool:
                examine = partial(_examine, timeout_s)
                group = [child for child in pool.map(examine, children[parent]) if child]
            if any(child.is_read for child in group):
                with suppress(OSError):  # one has ended meanwhile
                    _add(result, parent, group, by_variables.pop(parent, None), timeout_s)
            elif group:
                numbers = ", ".join(str(child.pid) for child in group[:8])
                result.notes.append(f"these may be ranks, but could not be read: {numbers}")
    result.processes.extend(by_variables.values())
    return result


def _may_be_rank(number: int, parent: int, is_of_rank: bool) -> bool:
    """Whether a process is the child of a Python program, and has loaded torch. Of a rank,
    only what it has spawned: it forks the workers of its DataLoaders."""
    try:
        is_forked = "--multiprocessing-fork" not in processes.entries(number, "cmdline")
        is_child = processes.is_python(number) and processes.is_python(parent)
        if not is_child or (is_of_rank and is_forked):
            return False
        return "/libtorch" in processes.read(number, "maps")
    except OSError:  # it has ended, or is another user's
        return False


def _examine(timeout_s: float, pid: int) -> _Descendant | None:
    """None if it is no rank."""
    is_distributed, number = False, None
    try:
        frames = stacks.variables(pid, timeout_s, processes.activity(pid, []).state in "Tt")
    except OSError:  # it has ended
        return None
    except stacks.StacksUnreadable:
        return _Descendant(pid, None, is_torch=False, is_read=False)
    for frame, values in frames:
        if frame.function in WORKERS and not frame.is_user:
            return None
        if frame.function == "_wrap" and SPAWN in frame.file:
            return _Descendant(pid, int(values["i"]), True)
        if frame.function.endswith("_bootstrap") and "multiprocessing/process.py" in frame.file:
            is_rank = is_distributed or number is not None
            return _Descendant(pid, number, is_torch=False) if is_rank else None
        is_distributed |= "torch/distributed/" in frame.file
        texts = [values[name] for name in NUMBERS if frame.is_user and name in values]
        number = next((int(text) for text in texts if text.isdigit()), number)
    return None


def _add(
    result: Spawned,
    parent: int,
    group: list[_Descendant],
    node: RankProcess | None,
    timeout_s: float,
) -> None:
    """Add the ranks of one parent. node: the parent, if it has a RANK itself: that of its node."""
    numbers: dict[int, _Descendant] = {}
    for child in sorted(group, key=lambda child: (child.number is None, child.pid)):
        if (number := child.number) is None or number in numbers:
            number = min({*range(len(group))} - numbers.keys())
            result.notes.append(FREE_NUMBERS)
        numbers[number] = child
    count, is_joining = max(numbers) + 1, False
    if any(child.is_torch for child in group):
        with suppress(stacks.StacksUnreadable):
            for frame, values in stacks.variables(parent, timeout_s):
                if SPAWN in frame.file and "nprocs" in values:
                    count, is_joining = int(values["nprocs"]), values["join"] == "True"
    nodes, first = (node.rank.world_size, node.rank.rank * count) if node else (1, 0)
    for number, child in numbers.items():
        variables = {"MASTER_ADDR": "pid", "MASTER_PORT": str(parent)}
        variables.update(processes.environ_of(child.pid), LOCAL_WORLD_SIZE="0")
        variables.update(RANK=str(first + number), LOCAL_RANK=str(number))
        variables["WORLD_SIZE"] = str(nodes * count)
        result.processes.append(processes.rank_process(child.pid, parent, variables))
    # One that has not loaded torch yet has not ended.
    pids = {child.pid for child in group}
    parents = processes.parents_of_all()
    siblings = [pid for pid in parents if parents[pid] == parent and pid not in pids]
    is_joining &= not any(
        "--multiprocessing-fork" in processes.entries(o, "cmdline") for o in siblings
    )
    for number in set(range(count)) - numbers.keys():
        if is_joining:
            # torch would have ended the others if it had failed.
            rank = replace(result.processes[-1].rank, rank=first + number, local_rank=number, pid=0)
            result.ended.append(RankState(**vars(rank), kind=ENDED, detail="came to its end"))
