"""Do the ranks' environments hold the same distributions? The lock's hash names what was installed;
this names what is installed now.

One rank of each host reads. Where the environment is on a disk of the host, a distribution's
digest covers its files' names, sizes and permissions; on a network file system, where looking at
every file is slow, only its own record. Contents are compared by `provision drift --deep`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, TypedDict

from ..comm.rank_names import name_ranks
from ..facts.digests import prefix_digests
from ..fs import mounts
from .outcome import Finding, grouped, majority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .rank_env import RankEnv

# More make a report unreadable: the environments are then different as a whole.
MAX_FINDINGS = 5
DIGEST_DIGITS = 12

# Version and digest by name.
Distributions = Dict[str, List[str]]


class Installed(TypedDict):
    """What an environment holds, and whether the digests cover files."""

    with_files: bool
    distributions: Distributions


def collect(env: RankEnv, prefix: str = sys.prefix) -> Installed | None:
    """None on a rank that need not read, and if the environment cannot be read."""
    if env.local_rank or env.all_local:
        return None
    try:
        mount = mounts.locate(Path(prefix)).mount
        with_files = mount is None or not mount.is_network
        digests = prefix_digests(prefix, deep=False, with_files=with_files)
    except OSError:
        return None
    distributions: Distributions = {
        name: [entry["version"], entry["digest"][:DIGEST_DIGITS]]
        for name, entry in digests["distributions"].items()
    }
    return {"with_files": with_files, "distributions": distributions}


def differences(installed_by_rank: Mapping[int, Installed | None]) -> list[Finding]:
    """Findings from comparing what ranks hold."""
    findings = []
    for with_files in (True, False):
        comparable = {
            rank: installed["distributions"]
            for rank, installed in installed_by_rank.items()
            if installed and installed["with_files"] == with_files
        }
        findings += _compare(comparable)
    return findings


def _compare(by_rank: Mapping[int, Distributions]) -> list[Finding]:
    names = sorted({name for distributions in by_rank.values() for name in distributions})
    differing = []
    for name in names:
        ranks_by_entry = grouped(
            (tuple(distributions.get(name, ())), rank) for rank, distributions in by_rank.items()
        )
        if len(ranks_by_entry) > 1:
            # Names the ranks that do not have what most have; all ranks if there is no
            # majority.
            entries = [entry for entry in ranks_by_entry if entry]
            only_files = len(entries) > 1 and len({version for version, _ in entries}) == 1
            most = majority(ranks_by_entry.values())
            texts, deviating = [], []
            for entry, ranks in ranks_by_entry.items():
                text = entry[0] if entry else "absent"
                if entry and only_files:
                    text = f"{text} with files {entry[1]}".strip()
                texts.append(f"{text} on {name_ranks(ranks)}")
                if ranks is not most:
                    deviating += ranks
            differing.append(
                Finding(
                    "environment-drift", f"{name}: {'; '.join(texts)}", tuple(sorted(deviating))
                )
            )
    if len(differing) <= MAX_FINDINGS:
        return differing
    message = f"{len(differing) - MAX_FINDINGS} more distributions differ between ranks"
    return [*differing[:MAX_FINDINGS], Finding("environment-drift", message, tuple(by_rank))]
