"""Containers of smoke tests: who owns them, and when they are removed. The owners are real processes."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_changed_start_time_means_the_process_ended() -> None:
    namespace, number, start_time = processes.this_process()
    assert not container_smoke._has_ended(f"{namespace} {number} {start_time}")
    assert container_smoke._has_ended(f"{namespace} {number} {int(start_time) + 1}")


@pytest.mark.parametrize("owner", ["", "?", "a b c", "other-boot/1 1 1"])
def test_invisible_process_has_not_ended(owner: str) -> None:
    assert not container_smoke._has_ended(owner)
    namespace = processes.this_process()[0]
    assert not container_smoke._has_ended(f"{namespace} x 1")


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
    labelled = container_smoke._settings(Engine(), IMAGE, gpus=False)
    own = Container(labelled["labels"])
    container_smoke._remove_orphans(Engine([own]), IMAGE)
    assert labelled["labels"][container_smoke.OWNER_LABEL].split(" ") == processes.this_process()
    assert not own.removed


def test_a_folder_is_tested_as_the_calling_user(tmp_path: Path) -> None:
    assert container_smoke._folder_settings(None) == {}
    settings = container_smoke._folder_settings(tmp_path)
    assert settings["user"] == f"{os.getuid()}:{os.getgid()}"
