"""Whether the kernel has killed processes of a cgroup because memory ran out.

The kernel counts such kills in the cgroup of the process that it kills: `oom_kill` in memory.events
(v2, admin-guide/cgroup-v2.rst, "memory.events") or in memory.oom_control (v1, since Linux 4.13). A
process that was killed cannot report it, so others get its counter before.
"""

from __future__ import annotations

from pathlib import Path

from ..dataclass import frozen
from .limits import ROOT, group_folders, named_counters

FILES = ("memory.events", "memory.oom_control")
KEY = "oom_kill"


@frozen
class OomCounter:
    """The counter of one cgroup, and its value when it was first read."""

    file: str
    kills: int

    def rise(self) -> int:
        """How many processes the kernel has killed since; 0 if the cgroup is gone."""
        return max(0, named_counters(Path(self.file)).get(KEY, 0) - self.kills)


def this_counter(root: Path = ROOT) -> OomCounter | None:
    """The counter of this process's cgroup; None where the kernel shows none."""
    for folder in group_folders("memory", root):
        for name in FILES:
            counters = named_counters(folder / name)
            if KEY in counters:
                return OomCounter(str(folder / name), counters[KEY])
    return None
