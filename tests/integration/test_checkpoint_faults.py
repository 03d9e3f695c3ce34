"""Faults at every system call of a save: kills, disk errors, short writes; and flipped bits.

The cases are in checkpoint_faults.py and checkpoint_bit_flips.py, which run with torch.
PROVISION_EXHAUSTIVE=1 injects every error at every call in every scene.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tracing
from tests.integration.scripts import run_program

MEMORY = Path("/dev/shm")
IS_EXHAUSTIVE = bool(os.environ.get("PROVISION_EXHAUSTIVE"))

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not tracing.IS_POSSIBLE, reason="the tracer knows Linux on x86-64"),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: these tests are about what is done, in which order, and that takes no disk."""
    with tempfile.TemporaryDirectory(
        dir=MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else tmp_path
    ) as folder:
        yield Path(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["kills", "all-kills"])
def test_kill_at_any_call_leaves_old_or_new_state(place: Path, mode: str) -> None:
    """At every third call in CI."""
    cases = run_program("checkpoint_faults", str(place), mode)
    assert sorted(cases) == ["back", "first", "incremental", "overwrite", "prune"]
    assert min(cases.values()) > 10, cases


@pytest.mark.exhaustive
def test_error_at_any_call_is_raised_and_leaves_old_state(place: Path) -> None:
    cases = run_program(
        "checkpoint_faults", str(place), "all-failures" if IS_EXHAUSTIVE else "failures"
    )
    assert {"first", "overwrite", "incremental", "lasting overwrite", "short overwrite"} <= set(
        cases
    )
    assert all(
        number > (3 if name.startswith("short") else 20) for name, number in cases.items()
    ), cases


@pytest.mark.parametrize("count", [40, 200])
def test_flipped_bits_are_refused_naming_the_file(place: Path, count: int) -> None:
    flips = run_program("checkpoint_bit_flips", str(place), str(count))
    assert {"latest", "manifest.json"} < set(flips) and len(flips) >= 5, flips
    assert set(flips.values()) == {count}


CALL = re.compile(r"^\d+ +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
QUOTED = re.compile(r'"([^"]*)"')
OPENED = re.compile(r"^\d+<([^>]*)>")


def traced(place: Path, root: Path) -> list[tuple[str, ...]]:
    """The calls of a save by torch that strace saw succeed, as (name, path or paths below the root)."""
    out = place / "trace"
    calls = "write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,unlink,unlinkat,rmdir"
    run_program(
        "checkpoint_once",
        str(root),
        before=(
            "strace",
            "-f",
            "--seccomp-bpf",
            "-y",
            "-s",
            "4096",
            "-e",
            f"trace={calls}",
            "-o",
            str(out),
        ),
    )
    result: list[tuple[str, ...]] = []
    for line in _whole_lines(out.read_text()):
        match = CALL.match(line)
        if match is None or match["result"].startswith("-"):
            continue
        opened = OPENED.match(match["arguments"])
        paths = (
            QUOTED.findall(match["arguments"])
            if match["call"] in ("rename", "link", "mkdir", "unlink", "rmdir")
            else []
        )
        paths = paths or ([opened[1]] if opened else [])
        below = [
            path[len(str(root)) + 1 :] for path in paths if (path + "/").startswith(f"{root}/")
        ]
        if below:
            result.append((match["call"], *below))
    return result


def _whole_lines(text: str) -> Iterator[str]:
    """A call that another thread's interrupted is told in two lines; it is over with the second."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif " resumed>" in line:
            yield begun.pop(thread) + line.split(" resumed>", 1)[1]
        else:
            yield line


@pytest.mark.exhaustive
@pytest.mark.needs("strace")
def test_save_call_order(tmp_path: Path) -> None:
    """Overwriting a step, incrementally: what is durable before what becomes visible."""
    root = tmp_path / "root"
    calls = traced(tmp_path, root)
    mkdir_at = max(place for place, call in enumerate(calls) if call[0] == "mkdir")
    calls, mkdir_at = calls[mkdir_at:], 0
    temporary = calls[mkdir_at][-1]
    renamed = next(
        place
        for place, call in enumerate(calls)
        if call == ("rename", temporary, "step-000000000001.1")
    )
    moved = next(
        place for place, call in enumerate(calls) if call[0] == "rename" and call[-1] == "latest"
    )
    aside = next(
        place for place, call in enumerate(calls) if call[:2] == ("rename", "step-000000000001")
    )

    def last(call: str, *paths: str) -> int:
        return max(
            place
            for place, traced_call in enumerate(calls[:aside])
            if traced_call == (call, *paths)
        )

    written = {
        call[1]
        for call in calls[:renamed]
        if call[0] in ("write", "writev") and call[1].startswith(temporary)
    }
    assert {Path(path).name for path in written} >= {"manifest.json"} and len(written) >= 4
    for path in written:
        writes = [
            place
            for place, call in enumerate(calls)
            if call[0] in ("write", "writev") and call[1] == path
        ]
        assert writes[-1] < last("fsync", path) < renamed, path
    linked = [place for place, call in enumerate(calls) if call[0] == "link"]
    entries = [place for place, call in enumerate(calls[:renamed]) if call == ("fsync", temporary)]
    manifest = last("fsync", f"{temporary}/manifest.json")
    assert linked and max(linked) < entries[-1] and manifest < entries[-1] < renamed
    # Each file, too, is durable before the folder's entries are, for the last time.
    assert all(last("fsync", path) < entries[-1] for path in written)
    pointer = calls[moved][1]
    root_synced = [place for place, call in enumerate(calls) if call == ("fsync", "")]
    assert last("fsync", pointer) < renamed
    assert any(renamed < place < moved for place in root_synced)
    assert any(moved < place < aside for place in root_synced)
    # The old generation goes last: out of sight, durably, and only then its files.
    removed = [
        place
        for place, call in enumerate(calls)
        if call[0] in ("unlink", "unlinkat", "rmdir") and place > aside
    ]
    assert removed and any(aside < place < min(removed) for place in root_synced)
    assert not any(
        call[0] in ("unlink", "unlinkat") and call[1].startswith("step-") for call in calls
    )
