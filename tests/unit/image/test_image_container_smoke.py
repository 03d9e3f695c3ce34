"""Containers of smoke tests: who owns them, and when they are removed. The owners are real processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docker.errors import NotFound

from provision.core.types import Image
from provision.image import container_smoke
from provision_runtime.comm import processes

IMAGE = Image(
    reference="provision/lab:1", layout=Path("/layout"), manifest_digest="sha256:1", image_id="sha256:2", base="debian",
    base_digest="sha256:3", lock_sha256="4", layers=(),
)  # fmt: skip


@dataclass
class Container:
    labels: Mapping[str, str]
    gone: bool = False
    removed: bool = False

    def remove(self, *, force: bool, v: bool) -> None:
        if self.gone:
            raise NotFound("no such container")
        self.removed = True


@dataclass
class Engine:
    """What is asked of the engine's list, answered from containers that are here."""

    existing: list[Container] = field(default_factory=list)

    @property
    def containers(self) -> Engine:
        return self

    def list(self, *, filters: Mapping[str, str], **how: object) -> list[Container]:
        key, _, value = filters["label"].partition("=")
        return [container for container in self.existing if container.labels.get(key) == value]


def labels(owner: list[str] | None = None) -> dict[str, str]:
    return {
        container_smoke.ENVIRONMENT_LABEL: "provision/lab",
        **({container_smoke.OWNER_LABEL: " ".join(owner)} if owner else {}),
    }


@pytest.fixture(scope="module")
def ended_process() -> list[str]:
    """A process that was, and is no more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = processes.identity(child.pid)
    return identity


def test_a_test_that_runs_keeps_its_container(ended_process: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        running, orphan = (
            Container(labels(processes.identity(other.pid))),
            Container(labels(ended_process)),
        )
        container_smoke._remove_orphans(Engine([running, orphan]), IMAGE)
        other.communicate(b"\n")
    assert (running.removed, orphan.removed) == (False, True)


def test_a_reused_process_number_is_not_the_owner() -> None:
    space, number, started = processes.this_process()
    later = Container(labels([space, number, str(int(started) + 1)]))
    container_smoke._remove_orphans(Engine([later]), IMAGE)
    assert later.removed


@pytest.mark.parametrize("owner", [None, ["elsewhere/1", "1", "1"], ["?"], ["a", "b", "c"]])
def test_containers_of_other_machines_stay(owner: list[str] | None) -> None:
    foreign = Container(labels(owner))
    container_smoke._remove_orphans(Engine([foreign]), IMAGE)
    assert not foreign.removed


def test_a_container_that_another_test_removed_is_skipped(ended_process: list[str]) -> None:
    first, second = Container(labels(ended_process), gone=True), Container(labels(ended_process))
    container_smoke._remove_orphans(Engine([first, second]), IMAGE)
    assert second.removed


def test_a_container_is_labelled_as_ours() -> None:
    labelled = container_smoke._settings(Engine(), IMAGE, "1g", gpus=False)
    own = Container(labelled["labels"])
    container_smoke._remove_orphans(Engine([own]), IMAGE)
    assert labelled["labels"][container_smoke.OWNER_LABEL].split(" ") == processes.this_process()
    assert not own.removed


@dataclass
class Receiving:
    """What a container is given, unpacked as the engine does."""

    received: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def put_archive(self, folder: str, archive: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive)) as reader:
            for member in reader:
                assert member.isreg(), member.name
                file = reader.extractfile(member)
                assert file is not None
                self.received[f"{folder}/{member.name}"] = member.mode, file.read()


def test_input_files_are_readable_by_any_user(tmp_path: Path) -> None:
    """One that only its owner may read."""
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "kept").chmod(0o600)
    container = Receiving()
    files = container_smoke.SmokeFiles(baseline=tmp_path / "kept", verb="compare")
    files.copy_into(container)
    [(path, received)] = container.received.items()
    assert received == (0o644, b"kept")
    assert files.options == ["--baseline", f"compare={path}"]


def test_a_folder_is_tested_as_the_calling_user(tmp_path: Path) -> None:
    assert container_smoke.SmokeFiles().container_settings == {}
    assert (
        container_smoke.SmokeFiles(folder=tmp_path).container_settings["user"]
        == f"{os.getuid()}:{os.getgid()}"
    )


def test_a_baseline_that_cannot_be_stored_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / container_smoke.BASELINE).write_text("new")
    (tmp_path / "kept").mkdir()
    with pytest.raises(OSError) as caught:
        container_smoke.SmokeFiles(baseline=tmp_path / "kept", verb="save").store_baseline(
            tmp_path / "out"
        )
    assert caught.value.filename == str(tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "out"]
