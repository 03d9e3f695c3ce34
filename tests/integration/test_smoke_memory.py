"""A rank that the kernel kills for want of memory, in a memory cgroup with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision_runtime.facts import oom
from provision_runtime.report import model
from provision_runtime.smoke import last_states, postmortem
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    environment,
    rank_process,
    slowness,
)
from tests.unit.runtime.smoke.builders import rank_env

MIB = 1 << 20
RANK = """
import sys
from pathlib import Path
from provision_runtime.smoke import last_states
from provision_runtime.smoke.postmortem import Location
from provision_runtime.comm.processes import this_process
from provision_runtime.facts import oom

location = Location("ddp", "h", this_process(), sys.argv[2], oom.this_counter())
last_states.write_location(Path(sys.argv[1]), 0, location)
memory = [bytearray(1 << 20) for _ in range(1024)]
"""
# Takes memory until the kernel has killed another process of the group, which it prefers.
HOG = """
from provision_runtime.facts import oom

counter, memory = oom.this_counter(), []
while not counter.rise():
    memory.append(bytearray(1 << 20))
"""


class Group:
    """A cgroup below this process's own, of v1 or v2."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self._limit = limit

    def set_limit(self, size: int) -> None:
        (self.folder / self._limit).write_text(str(size))

    def usage(self) -> int:
        names = ("memory.current", "memory.usage_in_bytes")
        (path,) = [self.folder / name for name in names if (self.folder / name).exists()]
        return int(path.read_text())

    def join(self) -> None:
        """For a child between fork and exec."""
        (self.folder / "cgroup.procs").write_text("0")


@pytest.fixture
def group() -> Iterator[Group]:
    own = oom.this_counter()
    if os.geteuid() != 0 or own is None:
        pytest.skip("needs root and a memory cgroup")
    folder = Path(own.file).parent / f"provision-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        names = [path.name for path in folder.iterdir()]
        limit = "memory.max" if "memory.max" in names else "memory.limit_in_bytes"
        if limit not in names:
            pytest.skip("the cgroup has no memory controller")
        yield Group(folder, limit)
    finally:
        folder.rmdir()


def test_memory_that_ran_out_is_named(group: Group, tmp_path: Path) -> None:
    group.set_limit(64 * MIB)
    env = rank_env(world_size=1)
    rank = [sys.executable, "-c", RANK, str(tmp_path), env.run]
    status = subprocess.run(rank, preexec_fn=group.join, check=False).returncode
    assert status == -9
    evidence = last_states.collect_evidence(None, tmp_path, env, {})
    (finding,) = postmortem.blame(evidence, 1, "", "")
    assert (finding.id, finding.ranks) == ("rank-oom-killed", (0,))
    assert finding.message.endswith("rose by 1), last in ddp on h")


def test_counter_of_a_group_without_kills_does_not_rise(group: Group) -> None:
    counter = oom.OomCounter(str(group.folder / Path(oom.this_counter().file).name), 0)  # type: ignore[union-attr]
    assert counter.rise() == 0
    subprocess.run([sys.executable, "-c", ""], preexec_fn=group.join, check=True)
    assert counter.rise() == 0


@pytest.mark.exhaustive
@pytest.mark.torch
@pytest.mark.parametrize("victim", [0, 1])
def test_rank_killed_for_want_of_memory_is_named(group: Group, tmp_path: Path, victim: int) -> None:
    arguments = ["--quick", "--ranks", "2", "--backend", "gloo", "--only", "barrier"]
    command = [PYTHON, str(FOLDER), "smoke", "--out", str(tmp_path), *arguments]
    with subprocess.Popen(
        [*command, "--inject", "hang:1:barrier"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        preexec_fn=group.join,
    ) as launcher:
        assert launcher.stdout is not None
        assert any("rendezvous" in line for line in launcher.stdout)
        number = rank_process(tmp_path, victim)
        Path(f"/proc/{number}/oom_score_adj").write_text("1000")
        group.set_limit(group.usage() + 32 * MIB)
        subprocess.run([sys.executable, "-c", HOG], preexec_fn=group.join, check=True)
        output, _ = launcher.communicate(timeout=TIMEOUT_S * slowness())
    report = model.loads((tmp_path / "report.json").read_text())
    (finding,) = report.phases[2].findings
    assert finding.id == "rank-oom-killed", output
    # The kernel may kill the other rank too, before the first one's memory is free.
    assert victim in finding.ranks or "rose by 2" in finding.message, output
    assert launcher.returncode == 1
