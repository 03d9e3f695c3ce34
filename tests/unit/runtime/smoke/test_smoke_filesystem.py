"""The target folder: what ranks say becomes findings; the steps of one rank and the readers of another, on a real folder."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provision_runtime.report.findings import CATALOG
from provision_runtime.smoke.outcome import Outcome
from provision_runtime.smoke.phases import filesystem, filesystem_findings
from provision_runtime.smoke.phases.filesystem_findings import FolderObservation


def location(device: int, point: str, type: str, source: str, options: str = "rw") -> Any:
    mount = {"point": point, "type": type, "source": source, "options": options}
    return {"device": device, "mount": mount}


DISK = location(1, "/", "ext4", "/dev/sda1")
SHARED = location(2, "/shared", "nfs4", "server:/x", "rw,nolock")
OTHER = location(3, "/shared", "tmpfs", "none")
HELD, REFUSED = (
    dict.fromkeys(("flock", "fcntl"), "locked"),
    dict.fromkeys(("flock", "fcntl"), "refused"),
)
NOTHING: dict[str, Any] = {"visible_s": {}, "sync_s": None, "locks": None}


def observed(count: int = 2, **changes: dict[str, Any]) -> list[FolderObservation]:
    """What ranks observe when all is well, but for what is stated as `_RANK={...}`."""
    observations = []
    for rank in range(count):
        fine: dict[str, Any] = {
            "host": "node1",
            "location": SHARED,
            "visible_s": {str(other): 0.01 for other in range(count)},
            "locks": (HELD, REFUSED, None)[min(rank, 2)],
            "sync_s": 0.01,
        }
        observations.append(FolderObservation(**{**fine, **changes.get(f"_{rank}", {})}))
    return observations


def judge(observations: list[FolderObservation]) -> Outcome:
    return filesystem_findings.judge("/shared/run", observations)


def judged(count: int = 2, **changes: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    outcome = judge(observed(count, **changes))
    return [(finding.id, finding.ranks) for finding in outcome.findings]


def test_good_folder_has_no_finding_and_its_measurements() -> None:
    outcome = judge(observed(3))
    assert (outcome.findings, outcome.broken, outcome.verdict) == ((), False, "pass")
    mount = "nfs4 server:/x mounted at /shared"
    assert outcome.data["mounts"] == {"0": mount, "1": mount, "2": mount}
    assert outcome.data["options"] == "rw,nolock"
    assert outcome.data["locks"] == {"flock": "pass", "fcntl": "pass"}
    assert "visible within 0.01 s, a durable write takes 0.010 s" in outcome.message


def test_single_rank_is_judged_without_peers() -> None:
    outcome = judge(observed(1, _0={"locks": None}))
    assert (outcome.verdict, outcome.data["locks"]) == ("pass", None)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EROFS, "folder-unwritable"),
        (errno.EACCES, "folder-unwritable"),
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.ESTALE, "folder-unmounted"),
        (errno.ENOTCONN, "folder-unmounted"),
        (errno.ENODEV, "folder-unmounted"),
        (errno.EIO, "folder-error"),
        (None, "folder-error"),
    ],
)
def test_system_error_has_a_finding(number: int | None, expected: str) -> None:
    assert filesystem_findings.finding_id(number) == expected
    assert CATALOG[expected].verdict == "fail"


def test_fault_at_several_steps_is_one_finding() -> None:
    visible = {"visible_s": {"1": 0.1, "2": 0.1}}
    full = {"problems": [("disk-full", "writing a file: full")], **NOTHING}
    later = {"problems": [("disk-full", "writing a file durably: full")], **visible}
    outcome = judge(observed(3, _0=full, _1=later, _2=visible))
    (finding,) = outcome.findings
    assert (finding.id, finding.ranks) == ("disk-full", (0, 1))
    assert finding.message == "writing a file: full"
    assert outcome.broken


@pytest.mark.parametrize(
    ("locations", "hosts", "groups", "expected"),
    [
        # on one host: another device behind the same name
        ((SHARED, OTHER), "aa", [[0], [1]], ("folder-unmounted", (1,))),
        # the one that lies further up is the one that is not mounted
        ((DISK, SHARED), "aa", [[0], [1]], ("folder-unmounted", (0,))),
        ((SHARED, DISK), "ab", [[0], [1]], ("folder-unmounted", (1,))),
        ((DISK, SHARED), "ab", [[0], [1]], ("folder-unmounted", (0,))),
        # a disk of its own on each host: nothing is unmounted, it is not shared
        ((DISK, DISK), "ab", [[0], [1]], ("folder-not-shared", (1,))),
        ((SHARED, SHARED), "aa", [[0], [1]], ("folder-not-shared", (1,))),
        ((SHARED, SHARED, DISK), "abc", [[0, 1], [2]], ("folder-unmounted", (2,))),
        ((DISK, SHARED, SHARED), "abc", [[0], [1, 2]], ("folder-unmounted", (0,))),
        ((DISK, DISK, DISK, DISK), "aabb", [[0, 1], [2, 3]], ("folder-not-shared", (2, 3))),
    ],
)
def test_ranks_with_another_folder_are_named(
    locations: tuple[Any, ...],
    hosts: str,
    groups: list[list[int]],
    expected: tuple[str, tuple[int, ...]],
) -> None:
    changes = {}
    for rank, host in enumerate(hosts):
        group = next(group for group in groups if rank in group)
        visible_s = {str(member): 0.01 for member in group}
        place = {"location": locations[rank], "host": host, "visible_s": visible_s}
        changes[f"_{rank}"] = {**place, "locks": None}
    outcome = judge(observed(len(hosts), **changes))
    assert [(finding.id, finding.ranks) for finding in outcome.findings] == [expected]
    assert outcome.broken


def test_folder_that_loses_files_is_an_error() -> None:
    assert judged(_0=NOTHING, _1=NOTHING) == [("folder-error", (0, 1))]


def test_different_device_is_fine_if_files_are_visible() -> None:
    """Two FUSE mounts or two containers show one bucket through two devices."""
    assert judged(_1={"location": OTHER}) == []


@given(
    some.lists(
        some.lists(some.integers(0, 4), unique=True, max_size=5).map(sorted), min_size=1, max_size=5
    )
)
def test_group_is_the_ranks_with_mutual_visibility(visible_by_rank: list[list[int]]) -> None:
    names = [list(map(str, visible)) for visible in visible_by_rank]
    group = filesystem_findings.largest_consistent_group(names)
    assert all(rank in visible_by_rank[rank] for rank in group)
    assert len({tuple(visible_by_rank[rank]) for rank in group}) <= 1
    assert group or all(rank not in visible for rank, visible in enumerate(visible_by_rank))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"_2": {"warnings": [("folder-slow", "7 s")]}}, [("folder-slow", (2,))]),
        (
            {f"_{rank}": {"warnings": [("space-low", f"{rank} MiB")]} for rank in (0, 2)},
            [("space-low", (0, 2))],
        ),
        ({}, []),
    ],
)
def test_warnings_of_ranks_are_one_finding(
    changes: dict[str, dict[str, Any]], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert judged(3, **changes) == expected
    outcome = judge(observed(3, **changes))
    assert (outcome.verdict, outcome.broken) == ("warn" if expected else "pass", False)


@pytest.mark.parametrize(
    ("blocks", "bytes", "files", "inodes", "warnings"),
    [
        (9, (1 << 30) - 4096, 9, 2000, 1),
        (9, 1 << 30, 9, 7, 1),
        (0, 0, 0, 0, 0),
        (9, 1 << 30, 9, 1000, 0),
    ],
)
def test_low_space_is_what_a_user_may_use(
    monkeypatch: pytest.MonkeyPatch, blocks: int, bytes: int, files: int, inodes: int, warnings: int
) -> None:
    status = SimpleNamespace(
        f_blocks=blocks, f_bavail=bytes // 4096, f_frsize=4096, f_files=files, f_favail=inodes
    )
    monkeypatch.setattr("os.statvfs", lambda path: status)
    observation = FolderObservation("node1")
    context: Any = None
    probe = filesystem.FolderProbe(context, Path("/shared"), Path("/shared/x"), observation)
    filesystem._warn_of_low_space(probe)
    assert [name for name, _ in observation.warnings] == ["space-low"] * warnings


@pytest.mark.parametrize(
    ("held", "second", "expected"),
    [
        ("locked", "refused", None),
        ("locked", "locked", "protects nothing"),
        ("No locks available", "No locks available", "is not supported: No locks available"),
    ],
)
def test_locks_are_judged_by_both_results(held: str, second: str, expected: str | None) -> None:
    wrong = filesystem_findings.lock_problem(held, second)
    assert wrong == expected or (wrong and expected and wrong.startswith(expected))


def test_many_ranks_create_one_folder(tmp_path: Path) -> None:
    makers = [
        threading.Thread(target=filesystem.make_after_race, args=(tmp_path / "a" / "b" / "c",))
        for _ in range(8)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_folder_creation_is_retried_after_a_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    makedirs, failures = os.makedirs, [errno.EEXIST]

    def racing(path: str, exist_ok: bool) -> None:
        if failures:
            raise OSError(failures.pop(), "a race")
        makedirs(path, exist_ok=exist_ok)

    monkeypatch.setattr(os, "makedirs", racing)
    monkeypatch.setattr(filesystem, "RACE_PAUSE_S", 0)
    assert filesystem.make_after_race(tmp_path / "folder")


def test_folder_creation_without_permission_is_not_retried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        filesystem.make_after_race(tmp_path / "file" / "folder")
