"""Target folders that are really full, read-only, small, slow, not mounted, or vanish.

Mounts are made in a mount namespace of their own, so nothing of them is left.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from provision_runtime.comm.addresses import free_port
from provision_runtime.report import model
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    FindingKey,
    environment,
    findings_of,
    left_over,
    variables_of,
)

BOTH = (0, 1)

pytestmark = [pytest.mark.torch, pytest.mark.mounts]


def own_mounts(script: str) -> list[str]:
    """Run what follows after the script, in a mount namespace of its own. $folder is the target folder."""
    return [
        *["unshare", "--mount", "--propagation", "private", "sh", "-c"],
        f'set -e; {script}; exec "$@"',
        "sh",
    ]


def start(
    out: Path,
    folder: Path,
    before: list[str],
    *arguments: str,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    usual = [
        "--out",
        str(out),
        *["--quick", "--ranks", "2", "--backend", "gloo", "--folder"],
        str(folder),
    ]
    return subprocess.Popen(
        [*before, PYTHON, str(FOLDER), "smoke", *usual, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment(), "folder": str(folder), **variables},
        cwd="/",
    )


def slow_disk(seconds: float) -> list[str]:
    """Run what follows with every fsync delayed in the kernel."""
    delay = f"inject=fsync:delay_enter={int(seconds * 1e6)}"
    return [
        *["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e"],
        delay,
    ]


needs_strace = pytest.mark.needs("strace")


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
    return report, {key for key in findings_of(report) if key[0] != "facts"}


FOLDERS = [
    (
        'mount -t tmpfs -o size=128k none "$folder"; head -c 256k /dev/zero >"$folder/other" || true',
        "disk-full",
        "fail",
    ),
    ('mount -t tmpfs -o ro none "$folder"', "folder-unwritable", "fail"),
    ('mount -t tmpfs -o size=64m none "$folder"', "space-low", "warn"),
]


@pytest.mark.parametrize(("script", "finding", "verdict"), FOLDERS, ids=[row[1] for row in FOLDERS])
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
    assert findings == {("checkpoint", "disk-full", (0, 1))}


# What a file system without locks, one that lost a handle, and one whose folders appear late answer.
# $CALL fails in $folder, and nowhere else; mkdir once in each process.
FAILING_CALLS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(const char *call, const char *path) {
    const char *folder = getenv("folder");
    return !strcmp(getenv("CALL"), call) && !strncmp(path, folder, strlen(folder));
}

static int fails_on(const char *call, int file) {
    char name[64], path[4096] = {0};
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    return readlink(name, path, sizeof path - 1) > 0 && fails(call, path);
}

int flock(int file, int operation) {
    int (*original)(int, int) = dlsym(RTLD_NEXT, "flock");
    if (fails_on("flock", file)) return errno = ENOLCK, -1;
    return original(file, operation);
}

int fsync(int file) {
    int (*original)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fails_on("fsync", file)) return errno = ESTALE, -1;
    return original(file);
}

int mkdir(const char *path, mode_t mode) {
    static int raced;
    int (*original)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    if (!raced && fails("mkdir", path)) return raced = 1, errno = EEXIST, -1;
    return original(path, mode);
}
"""


@pytest.mark.needs("gcc")
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("call", "finding", "verdict"),
    [
        ("flock", "locks-unsupported", "warn"),
        ("fsync", "folder-unmounted", "fail"),
        ("mkdir", "makedirs-unsafe", "warn"),
    ],
)
def test_calls_that_a_file_system_refuses(
    tmp_path: Path, call: str, finding: str, verdict: str
) -> None:
    source, library = tmp_path / "calls.c", tmp_path / "calls.so"
    source.write_text(FAILING_CALLS)
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    variables = {"LD_PRELOAD": str(library), "CALL": call}
    out, folder = tmp_path / "out", tmp_path / "folder"
    written, findings = finish(
        out, start(out, folder, [], "--only", "filesystem", variables=variables)
    )
    assert (findings, written.verdict) == ({("filesystem", finding, BOTH)}, verdict)


def test_other_folder_is_distinguished_from_missing_mount(
    tmp_path: Path,
) -> None:
    """As on a host where the shared folder is not mounted: rank 1 writes into the folder below."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    folder.mkdir()
    port = free_port()
    before = [own_mounts('mount -t tmpfs none "$folder"'), []]
    children = [
        start(out, folder, before[rank], "--only", "filesystem", variables=variables_of(rank, port))
        for rank in range(2)
    ]
    written, findings = finish(out, *children)
    assert findings == {("filesystem", "folder-unmounted", (1,))}
    [phase] = [phase for phase in written.phases if phase.name == "filesystem"]
    assert f"tmpfs none mounted at {folder} on rank 0" in phase.message
    assert list(folder.iterdir()) == []


@needs_strace
@pytest.mark.exhaustive
def test_folder_vanishes_during_the_run(tmp_path: Path) -> None:
    """Unmounted by another process as soon as the phase has begun to work in it; strace makes the disk slow enough for that."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    watch = 'mount -t tmpfs none "$folder"; (while [ -z "$(ls -A "$folder")" ]; do sleep 0.05; done; umount -l "$folder") >&- 2>&- &'
    before = [*own_mounts(f"{watch}\n:"), *slow_disk(0.5)]
    _, findings = finish(out, start(out, folder, before, "--only", "filesystem"))
    assert findings == {("filesystem", "folder-unmounted", BOTH)}
    assert list(folder.iterdir()) == []


@needs_strace
@pytest.mark.exhaustive
def test_slow_disk_on_one_rank(tmp_path: Path) -> None:
    out, folder, port = tmp_path / "out", tmp_path / "folder", free_port()
    only = ("--only", "filesystem")
    children = [
        start(out, folder, [], *only, variables=variables_of(0, port)),
        start(out, folder, slow_disk(2.6), *only, variables=variables_of(1, port)),
    ]
    written, findings = finish(out, *children)
    assert (findings, written.verdict) == ({("filesystem", "folder-slow", (1,))}, "warn")


# As in a container with a read-only root and no volume for /tmp. The folder of the test stays
# writable; nox has set TMPDIR.
READ_ONLY = (
    "unset TMPDIR; for place in /tmp /var/tmp; do mount --bind $place $place; mount -o remount,bind,ro $place; done; "
    'own="$(dirname "$folder")"; mount --bind "$own" "$own"; mount -o remount,bind,rw "$own"; cd /proc'
)


@pytest.mark.exhaustive
def test_no_sockets_for_loader_workers(tmp_path: Path) -> None:
    """A loader would wait for minutes: its workers cannot make their sockets."""
    out = tmp_path / "out"
    only = ("--only", "facts", "--ranks", "1")
    written, _ = finish(out, start(out, tmp_path / "folder", own_mounts(READ_ONLY), *only))
    assert ("facts", "tmpdir-unusable", (0,)) in findings_of(written)
    assert "no folder for temporary files can be written" in written.phases[0].message


@pytest.mark.exhaustive
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
