"""The target folder: what ranks say becomes findings; the steps of one rank and the readers of another, on a real folder."""

from __future__ import annotations

import errno
import fcntl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provision_runtime.report.findings import CATALOG
from provision_runtime.smoke.outcome import Outcome
from provision_runtime.smoke.phases import filesystem, filesystem_findings

DISK = {
    "device": 1,
    "mount": {"point": "/", "type": "ext4", "source": "/dev/sda1", "options": "rw"},
}
SHARED = {
    "device": 2,
    "mount": {"point": "/shared", "type": "nfs4", "source": "server:/x", "options": "rw,nolock"},
}
OTHER = {
    "device": 3,
    "mount": {"point": "/shared", "type": "tmpfs", "source": "none", "options": "rw"},
}
FINE = {"held": "got it", "second": "refused", "after": "got it"}


def answers(count: int = 2, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What ranks say when all is well, but for what is given as `_RANK={...}`."""
    fine: list[dict[str, Any]] = [
        {
            "host": "node1",
            "location": SHARED,
            "problems": [],
            "races": 0,
            "visible_s": {str(other): 0.01 for other in range(count)},
            "reads": {"count": 9, "generations": 5, "torn": None} if rank else None,
            "locks": {"holder": 0, "peer": 1, "results": {"flock": FINE, "fcntl": FINE}}
            if rank < 2
            else None,
            "sync_s": 0.01,
            "space": {"free_bytes": 1 << 40, "free_inodes": 1 << 20},
            "hard_link": True,
        }
        for rank in range(count)
    ]
    for rank, change in changes.items():
        fine[int(rank[1:])].update(change)
    return fine


def judged(rank_answers: list[dict[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.id, finding.ranks) for finding in judge(rank_answers).findings]


def judge(rank_answers: list[dict[str, Any]]) -> Outcome:
    return filesystem_findings.judge("/shared/run", rank_answers)


def test_good_folder_has_no_finding_and_its_measurements() -> None:
    outcome = judge(answers(3))
    assert (outcome.findings, outcome.broken, outcome.verdict) == ((), False, "pass")
    assert outcome.data["mounts"] == {"0": "nfs4 server:/x mounted at /shared"}
    assert outcome.data["options"] == "rw,nolock"
    assert outcome.data["locks"] == {"flock": "pass", "fcntl": "pass"}
    assert (
        outcome.message
        == "a new file is visible within 0.01 s, a durable write takes 0.010 s, 1 TiB free in /shared/run"
    )


def test_single_rank_is_judged_without_peers() -> None:
    outcome = judge(answers(1, _0={"reads": None, "locks": None}))
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
    gone: dict[str, Any] = {
        "visible_s": {},
        "sync_s": None,
        "space": None,
        "reads": None,
        "locks": None,
    }
    full = {"problems": [["disk-full", "writing a file: full"]], **gone}
    later = {
        "problems": [["disk-full", "writing a file durably: full"]],
        "sync_s": None,
        "visible_s": {"1": 0.1, "2": 0.1},
    }
    outcome = judge(
        answers(
            3,
            _0=full,
            _1=later,
            _2={"visible_s": {"1": 0.1, "2": 0.1}, "space": {"free_bytes": 0, "free_inodes": 9}},
        )
    )
    assert [
        (finding.id, finding.ranks, finding.message)
        for finding in outcome.findings
        if finding.id != "space-low"
    ] == [("disk-full", (0, 1), "writing a file: full")]
    assert outcome.broken


def test_full_disk_is_not_also_nearly_full() -> None:
    full = {"problems": [["disk-full", "writing a file: full"]]}
    assert judged(answers(2, _0=full, _1={"space": {"free_bytes": 5, "free_inodes": 5}})) == [
        ("disk-full", (0,))
    ]


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
    rank_answers = answers(len(hosts))
    for rank, answer in enumerate(rank_answers):
        own_group = next(group for group in groups if rank in group)
        answer.update(
            location=locations[rank],
            host=hosts[rank],
            visible_s={str(other): 0.01 for other in own_group},
            reads=None,
            locks=None,
        )
    outcome = judge(rank_answers)
    assert [(finding.id, finding.ranks) for finding in outcome.findings] == [expected]
    assert outcome.broken
    assert "/shared/run" in outcome.findings[0].message


def test_folder_that_loses_files_is_an_error() -> None:
    gone: dict[str, Any] = {
        "visible_s": {},
        "reads": None,
        "locks": None,
        "sync_s": None,
        "space": None,
    }
    assert judged(answers(2, _0=gone, _1=gone)) == [("folder-error", (0, 1))]


def test_different_device_is_fine_if_files_are_visible() -> None:
    """Two FUSE mounts or two containers show one bucket through two devices."""
    assert judged(answers(2, _1={"location": OTHER})) == []


@given(
    some.lists(
        some.lists(some.integers(0, 4), unique=True, max_size=5).map(sorted), min_size=1, max_size=5
    )
)
def test_crew_is_the_ranks_with_mutual_visibility(
    seen_by: list[list[int]],
) -> None:
    together = filesystem_findings.largest_consistent_group(seen_by)
    assert all(rank in seen_by[rank] for rank in together)
    assert len({tuple(seen_by[rank]) for rank in together}) <= 1
    assert together or all(rank not in visible for rank, visible in enumerate(seen_by))


def test_slowness_names_only_the_slow_ranks() -> None:
    outcome = judge(answers(3, _2={"sync_s": 7.0}))
    assert [(finding.id, finding.ranks) for finding in outcome.findings] == [("folder-slow", (2,))]
    assert (
        outcome.findings[0].message
        == "a durable write of 64 KiB took 7.0 s in /shared/run (median of all ranks 0.010 s)"
    )
    assert (outcome.verdict, outcome.broken) == ("warn", False)
    assert judged(answers(2, _0={"visible_s": {"0": 0.1, "1": 6.0}})) == [("folder-slow", (0,))]


def test_little_space_and_few_inodes_are_reported() -> None:
    assert judged(answers(2, _1={"space": {"free_bytes": 1 << 20, "free_inodes": None}})) == [
        ("space-low", (1,))
    ]
    assert judged(answers(2, _1={"space": {"free_bytes": None, "free_inodes": 7}})) == [
        ("space-low", (1,))
    ]
    assert judged(answers(2, _1={"space": {"free_bytes": None, "free_inodes": None}})) == []


def test_torn_read_names_the_reader() -> None:
    assert judged(answers(2, _1={"reads": {"count": 3, "generations": 1, "torn": "no file"}})) == [
        ("rename-not-atomic", (1,))
    ]


def test_folder_creation_race_is_a_warning() -> None:
    outcome = judge(answers(2, _1={"races": 3}))
    assert ([(finding.id, finding.ranks) for finding in outcome.findings], outcome.verdict) == (
        [("makedirs-unsafe", (1,))],
        "warn",
    )


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (FINE, None),
        ({"held": "got it", "second": "got it", "after": "got it"}, "protects nothing"),
        ({"held": "No locks available"}, "is not supported: No locks available"),
        ({"held": "got it", "second": "no answer"}, "did not return within 5 s"),
        ({"held": "got it", "second": "refused", "after": "refused"}, "is not released"),
        ({}, None),
    ],
)
def test_locks_are_judged_by_both_results(results: dict[str, str], expected: str | None) -> None:
    wrong = filesystem_findings.lock_problem(results)
    assert wrong == expected or (wrong and expected and wrong.startswith(expected))


def test_hanging_lock_is_abandoned(tmp_path: Path) -> None:
    """A real lock that is held: the call waits in the kernel, as before a lock service that is gone."""
    with (tmp_path / "lock").open("w") as holder, (tmp_path / "lock").open("w") as waiter:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert (
            filesystem.call_within(
                0.05,
                lambda: filesystem._ignoring_errors(lambda: fcntl.flock(waiter, fcntl.LOCK_EX)),
            )
            == filesystem_findings.NO_ANSWER
        )
        fcntl.flock(holder, fcntl.LOCK_UN)
        deadline = time.monotonic() + 10
        while (
            any(thread.name == "lock" for thread in threading.enumerate())
            and time.monotonic() < deadline
        ):
            time.sleep(0.001)


def read_while(path: Path, write: Any) -> dict[str, Any]:
    """What a reader sees of a file while another thread writes it."""
    path.write_bytes(filesystem.generation_content(0))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        return filesystem.read_generations(path, 50)
    finally:
        writer.join()


def test_reader_sees_complete_files_during_replacement(tmp_path: Path) -> None:
    readings = read_while(
        tmp_path / "file", lambda: filesystem.write_generations(tmp_path / "file", 50)
    )
    assert readings["torn"] is None
    assert readings["count"] > 0


def test_reader_detects_a_non_atomic_writer(tmp_path: Path) -> None:
    def write_in_place() -> None:
        for generation in range(1, 51):
            (tmp_path / "file").write_bytes(
                filesystem.generation_content(generation)[: filesystem.FILE_BYTES // 2]
            )
            time.sleep(0.001)

    torn = read_while(tmp_path / "file", write_in_place)["torn"]
    assert torn in (
        f"{filesystem.FILE_BYTES // 2} of {filesystem.FILE_BYTES} bytes",
        f"0 of {filesystem.FILE_BYTES} bytes",
    )  # also just after it was emptied


def test_torn_content_is_described() -> None:
    mixed = filesystem.generation_content(1)[:-8] + filesystem.generation_content(2)[:8]
    assert filesystem.torn_problem(mixed) == "the old content and the new one in one file"
    assert filesystem.torn_problem(b"") == f"0 of {filesystem.FILE_BYTES} bytes"
    assert filesystem.torn_problem(filesystem.generation_content(7)) is None


def test_many_ranks_create_one_folder(tmp_path: Path) -> None:
    makers = [
        threading.Thread(target=filesystem.make_counting_races, args=(tmp_path / "a" / "b" / "c",))
        for _ in range(8)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_folder_creation_is_retried_after_a_race_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    makedirs, failures = os.makedirs, [errno.EEXIST, errno.ENOENT]

    def racing(path: str, exist_ok: bool) -> None:
        if failures:
            raise OSError(failures.pop(), "a race")
        makedirs(path, exist_ok=exist_ok)

    monkeypatch.setattr(os, "makedirs", racing)
    monkeypatch.setattr(filesystem, "RACE_PAUSE_S", 0)
    assert filesystem.make_counting_races(tmp_path / "folder") == 2


def test_folder_creation_without_permission_is_not_retried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        filesystem.make_counting_races(tmp_path / "file" / "folder")
