"""Target folders that are really full, read-only, small, slow, not mounted, or vanish; and a /dev/shm that is too small.

Mounts are made in a mount namespace of their own, so nothing of them is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision_runtime.report import model
from provision_runtime.smoke.launcher import free_port
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    FindingKey,
    environment,
    left_over,
)

BOTH = (0, 1)
Variables = dict[str, str] | None


def no_namespaces() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "needs root and unshare for a mount namespace"
    tried = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() or "no mount namespace can be made" if tried.returncode else None


pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(bool(no_namespaces()), reason=str(no_namespaces())),
]


def own_mounts(script: str) -> list[str]:
    """Run what follows after the script, in a mount namespace of its own. $folder is the target folder."""
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f'set -e; {script}; exec "$@"',
        "sh",
    ]


def start(
    out: Path,
    folder: Path,
    before: list[str],
    *arguments: str,
    variables: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    usual = [
        "--out",
        str(out),
        "--quick",
        "--ranks",
        "2",
        "--backend",
        "gloo",
        "--folder",
        str(folder),
    ]
    return subprocess.Popen(
        [*before, PYTHON, str(FOLDER), "smoke", *usual, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment(), "folder": str(folder), **(variables or {})},
        cwd="/",
    )


def slow_disk(seconds: float) -> list[str]:
    """Run what follows with every fsync delayed in the kernel."""
    delay = f"inject=fsync:delay_enter={int(seconds * 1e6)}"
    return [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync",
        "-e",
        delay,
    ]


def place(rank: int, port: int) -> dict[str, str]:
    """The variables of one of two ranks that are started apart."""
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}


needs_strace = pytest.mark.needs("strace")


@pytest.fixture(scope="module", autouse=True)
def on_a_slow_disk(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """Two ranks, one of them on a slow disk. They wait most of their time, so they start first and run beside the other tests."""
    folder, port = tmp_path_factory.mktemp("slow"), free_port()
    ranks = range(2 if shutil.which("strace") else 0)
    children = [
        start(
            folder / "out",
            folder / "folder",
            slow_disk(2.6) if rank else [],
            "--only",
            "filesystem",
            variables=place(rank, port),
        )
        for rank in ranks
    ]
    yield folder / "out", children
    for child in children:
        with child:
            child.kill()


def finish(out: Path, *children: subprocess.Popen[str]) -> tuple[model.Report, set[FindingKey]]:
    """The report, and its findings but for those about the machine that the test runs on (phase facts)."""
    try:
        outputs = [child.communicate(timeout=TIMEOUT_S)[0] for child in children]
    finally:
        for child in children:
            with child:
                child.kill()
    assert left_over(out) == []
    assert (out / "report.json").exists(), outputs
    report = model.loads((out / "report.json").read_text())
    leftovers = {
        (phase.name, finding.id, tuple(finding.ranks))
        for phase in report.phases
        for finding in phase.findings
        if phase.name != "facts"
    }
    return report, leftovers


FOLDERS = [
    (
        'mount -t tmpfs -o size=128k none "$folder"; head -c 256k /dev/zero >"$folder/other" || true',
        "disk-full",
        "fail",
    ),
    ('mount -t tmpfs -o ro none "$folder"', "folder-unwritable", "fail"),
    ('mount -t tmpfs -o size=64m none "$folder"', "space-low", "warn"),
]


@pytest.mark.parametrize(
    ("script", "finding", "verdict"), FOLDERS, ids=[finding for _, finding, _ in FOLDERS]
)
def test_real_folder_faults(tmp_path: Path, script: str, finding: str, verdict: str) -> None:
    only = ("--only", "filesystem", "--only", "checkpoint")
    written, findings = finish(
        tmp_path / "out",
        start(tmp_path / "out", tmp_path / "it's a folder", own_mounts(script), *only),
    )
    assert (findings, written.verdict) == ({("filesystem", finding, BOTH)}, verdict)


@pytest.mark.exhaustive
def test_checkpoint_in_a_full_folder_reports_the_same(tmp_path: Path) -> None:
    _, findings = finish(
        tmp_path / "out",
        start(
            tmp_path / "out", tmp_path / "folder", own_mounts(FOLDERS[0][0]), "--only", "checkpoint"
        ),
    )
    assert findings == {("checkpoint", "disk-full", BOTH)}


def test_other_folder_is_distinguished_from_missing_mount(
    tmp_path: Path,
) -> None:
    """As on a host where the shared folder is not mounted: rank 1 writes into the folder below."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    folder.mkdir()
    port = free_port()
    before = [own_mounts('mount -t tmpfs none "$folder"'), []]
    children = [
        start(out, folder, before[rank], "--only", "filesystem", variables=place(rank, port))
        for rank in range(2)
    ]
    written, findings = finish(out, *children)
    assert findings == {("filesystem", "folder-unmounted", (1,))}
    message = next(
        finding.message
        for phase in written.phases
        for finding in phase.findings
        if finding.id == "folder-unmounted"
    )
    assert f"tmpfs none mounted at {folder} on rank 0" in message
    assert list(folder.iterdir()) == []


@needs_strace
@pytest.mark.exhaustive
def test_folder_vanishes_during_the_run(tmp_path: Path) -> None:
    """Unmounted by another process as soon as the phase has begun to work in it; strace makes the disk slow enough for that."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    watch = 'mount -t tmpfs none "$folder"; (while [ -z "$(ls -A "$folder")" ]; do sleep 0.05; done; umount -l "$folder") >&- 2>&- &'
    before = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f'{watch}\nexec "$@"',
        "sh",
        *slow_disk(0.5),
    ]
    _, findings = finish(out, start(out, folder, before, "--only", "filesystem"))
    assert findings == {("filesystem", "folder-unmounted", BOTH)}
    assert list(folder.iterdir()) == []


@needs_strace
@pytest.mark.exhaustive
def test_slow_disk_on_one_rank(
    on_a_slow_disk: tuple[Path, list[subprocess.Popen[str]]],
) -> None:
    out, children = on_a_slow_disk
    written, findings = finish(out, *children)
    assert (findings, written.verdict) == ({("filesystem", "folder-slow", (1,))}, "warn")


@pytest.mark.exhaustive
def test_shared_memory_too_small_for_loader_workers(tmp_path: Path) -> None:
    """As in a container without --shm-size, only smaller."""
    script = "mount -t tmpfs -o size=64k none /dev/shm"
    written, findings = finish(
        tmp_path / "out",
        start(tmp_path / "out", tmp_path / "folder", own_mounts(script), "--only", "ddp"),
    )
    assert findings == {("ddp", "dataloader-failed", BOTH)}
    assert any(
        finding.id.startswith("shm")
        for phase in written.phases
        if phase.name == "facts"
        for finding in phase.findings
    )


def test_dead_rank_leaves_the_folder_clean(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    _, findings = finish(
        tmp_path / "out",
        start(tmp_path / "out", folder, [], "--only", "checkpoint", "--inject", "die:1:checkpoint"),
    )
    assert findings == {("checkpoint", "rank-died", (1,))}
    assert list(folder.iterdir()) == []


@pytest.mark.exhaustive
def test_interrupted_run_leaves_the_folder_clean(tmp_path: Path) -> None:
    """In the middle of the phase: rank 0 is slow there for seconds."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    child = start(out, folder, [], "--only", "filesystem", "--inject", "slow-folder:0")
    end = time.monotonic() + TIMEOUT_S
    while not list(folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    child.send_signal(signal.SIGTERM)
    _, findings = finish(out, child)
    assert {(phase, name) for phase, name, _ in findings} == {("filesystem", "interrupted")}
    assert list(folder.iterdir()) == []
