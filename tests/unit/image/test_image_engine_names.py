"""Names and ids in an engine with containerd's image store, which two users share.

The engine here keeps what the SDK is told in memory; ids are digests of manifests of its own, as
such an engine has them. The real engine of the integration tests has the older store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from provision.adapters import docker as engines
from provision.core import tar
from provision.core.errors import NoSpace, ProvisionError, ToolFailed
from provision.core.types import Image, Layer
from provision.image import docker, oci_layout
from provision.image.config import LOCK_LABEL
from provision.image.docker import load_image, removable_images, runnable_name, unmet_requirements
from tests.paths import DATA
from tests.unit.image.test_image_build import Quiet
from tests.unit.image.test_image_disk_base import LAYERS, config, layout
from tests.unit.image.test_image_layers import digest

LOCK = "5c" * 32
REFERENCE = f"provision/lab:{LOCK[:12]}"
RECORDED = json.loads((DATA / "engines.json").read_text())


class ContainerdEngine:
    """The part of the SDK's client that loads, names and finds images."""

    def __init__(self) -> None:
        self.by_id: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, str] = {}
        self.unpack_error = ""
        self.archives = 0
        self.images = SimpleNamespace(get=self._get, remove=self.by_id.pop)
        self.api = SimpleNamespace(
            load_image=self._load,
            tag=self._tag,
            images=lambda **_: list(self.by_id),
            base_url="http+docker://localhost",
        )

    def info(self) -> dict[str, Any]:
        return {"ID": "lab", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": "Engine"}]}

    def _get(self, name: str) -> Any:
        image_id = self.tags.get(name, name)
        if image_id not in self.by_id:
            raise NotFound(name)
        attributes = self.by_id[image_id]
        tags = [tag for tag, tagged in self.tags.items() if tagged == image_id]
        labels = attributes["Config"].get("Labels") or {}
        return SimpleNamespace(id=image_id, attrs=attributes, labels=labels, tags=tags)

    def _load(self, archive: Iterator[bytes]) -> list[dict[str, Any]]:
        """As LoadImage of moby's daemon/containerd/image_exporter.go, of 2026-08, does it: all layers
        must be in the archive, and an image that cannot be unpacked stays."""
        self.archives += 1
        documents: dict[str, Any] = {}
        names: list[str] = []
        with tar.open_stream(archive) as members:
            for member in members:
                names.append(member.name)
                file = members.extractfile(member)
                if file is not None and member.name.endswith(".json"):
                    documents[member.name] = json.loads(file.read())
        [entry] = documents["manifest.json"]
        missing = [name for name in entry["Layers"] if name not in names]
        if missing:
            return [{"errorDetail": {"message": f"layer {missing[0]!r} not found"}}]
        settings = documents[entry["Config"]]
        image_id = digest(json.dumps([settings, "manifest"]).encode())
        rootfs = {"Layers": settings["rootfs"]["diff_ids"]}
        self.by_id[image_id] = {"Config": settings["config"], "RootFS": rootfs, "Size": 1}
        rows = [{"stream": f"Loaded image ID: {image_id}\n"}]
        if self.unpack_error:
            rows.append({"stream": f"Error unpacking image {image_id}: {self.unpack_error}\n"})
        return rows

    def _tag(self, image_id: str, repository: str, tag: str) -> None:
        self.tags[f"{repository}:{tag}"] = image_id


def user_image(folder: Path, user: str) -> Image:
    """An image of one lock, which differs from user to user in a variable of its base."""
    path = layout(folder / user)
    settings = json.loads(config())
    settings["config"] = {"Env": [f"USER={user}"], "Labels": {LOCK_LABEL: LOCK}}
    content = json.dumps(settings).encode()
    image_id = digest(content)
    oci_layout.blob(path, image_id).write_bytes(content)
    layers = tuple(Layer(group="base", digest=digest(part), size=len(part)) for part in LAYERS)
    for part in LAYERS:
        oci_layout.blob(path, digest(part)).write_bytes(part)
    return Image(
        reference=REFERENCE,
        layout=path,
        manifest_digest=digest(b""),
        image_id=image_id,
        base="lab:12",
        base_digest=digest(b""),
        lock_sha256=LOCK,
        layers=layers,
    )


def test_the_name_of_another_users_image_is_not_moved(tmp_path: Path) -> None:
    engine = ContainerdEngine()
    theirs, own = user_image(tmp_path, "theirs"), user_image(tmp_path, "own")
    assert load_image(theirs, engine, Quiet())
    before = dict(engine.tags)
    assert set(before) == {REFERENCE, "provision/lab:latest"}
    assert load_image(own, engine, Quiet())
    assert engine.tags == before
    assert not load_image(own, engine, Quiet())  # found without a name
    own_id = docker.find_engine_id(own, engine)
    assert own_id not in before.values()
    assert runnable_name(engine, own.layout, REFERENCE) == own_id
    assert runnable_name(engine, theirs.layout, REFERENCE) == REFERENCE
    assert removable_images(own.layout, engine) == {own_id: 1}


def test_an_own_name_moves_to_the_newer_image(tmp_path: Path) -> None:
    engine = ContainerdEngine()
    older = user_image(tmp_path, "older")
    newer = replace(user_image(tmp_path, "newer"), layout=older.layout)
    settings = oci_layout.blob(tmp_path / "newer", newer.image_id).read_bytes()
    oci_layout.blob(older.layout, newer.image_id).write_bytes(settings)
    load_image(older, engine, Quiet())
    earlier = engine.tags[REFERENCE]
    load_image(newer, engine, Quiet())
    assert engine.tags[REFERENCE] == engine.tags["provision/lab:latest"] != earlier
    assert earlier not in engine.by_id


def test_a_name_that_another_user_moved_is_not_removed(tmp_path: Path) -> None:
    engine = ContainerdEngine()
    own, theirs = user_image(tmp_path, "own"), user_image(tmp_path, "theirs")
    load_image(own, engine, Quiet())
    own_id = engine.tags[REFERENCE]
    load_image(theirs, engine, Quiet())
    their_id = docker.find_engine_id(theirs, engine)
    engine.tags[REFERENCE] = their_id  # `docker tag`
    assert own_id != their_id
    assert list(removable_images(own.layout, engine)) == ["provision/lab:latest"]


@pytest.mark.parametrize("has_runtime", [True, False])
def test_an_engine_without_nvidias_runtime_is_started_without_gpus(
    tmp_path: Path, has_runtime: bool
) -> None:
    """The printed `docker run` must work on the engine that has the image."""

    class Engine(ContainerdEngine):
        def info(self) -> dict[str, Any]:
            runtimes: dict[str, Any] = {"runc": {}, **({"nvidia": {}} if has_runtime else {})}
            return {**super().info(), "Runtimes": runtimes}

    engine = Engine()
    load_image(user_image(tmp_path, "own"), engine, Quiet())
    unmet = unmet_requirements(engine, REFERENCE, "lab")
    assert unmet == (() if has_runtime else ("gpus", "memlock"))


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("failed to extract layer: write /var/x: no space left on device", NoSpace),
        ("failed to extract layer: exit status 1", ToolFailed),
    ],
)
def test_image_that_the_engine_could_not_unpack_is_not_loaded(
    tmp_path: Path, reason: str, error: type[ProvisionError]
) -> None:
    engine, own = ContainerdEngine(), user_image(tmp_path, "own")
    engine.unpack_error = reason
    with pytest.raises(error, match=r"disk is full|exit status 1"):
        load_image(own, engine, Quiet())
    assert not engine.by_id and not engine.tags


def test_layers_that_containerd_has_are_sent_again(tmp_path: Path) -> None:
    """It refuses an archive without them: nothing is sent twice."""
    engine = ContainerdEngine()
    load_image(user_image(tmp_path, "theirs"), engine, Quiet())
    load_image(user_image(tmp_path, "own"), engine, Quiet())
    assert engine.archives == 2


@pytest.mark.parametrize("name", RECORDED["engines"])
def test_answers_of_todays_engines(tmp_path: Path, name: str) -> None:
    """As Docker 28.5.2, with and without containerd's image store, and Podman 5.8.6 replied about one image."""
    answers = RECORDED["engines"][name]
    has_store = name.endswith("containerd")
    rows = answers["load"]
    engine = SimpleNamespace(
        info=lambda: answers["info"], api=SimpleNamespace(load_image=lambda _: rows)
    )
    assert engines.uses_containerd_store(engine) == has_store
    attributes = answers["image"]
    assert engines.load_archive(engine, iter(()), "lab") == [attributes["Id"]]
    own = user_image(tmp_path, "own")
    content = json.dumps(RECORDED["config"], sort_keys=True, separators=(",", ":")).encode()
    own = replace(own, image_id=digest(content))
    oci_layout.blob(own.layout, own.image_id).write_bytes(content)
    assert (attributes["Id"] == own.image_id) == (not has_store)
    assert docker.is_same(attributes, own)
    other = {**attributes, "RootFS": {"Layers": attributes["RootFS"]["Layers"][1:]}}
    assert not docker.is_same(other, own)
    if rows := answers.get("load_without_a_layer"):
        with pytest.raises(ToolFailed, match=r"not found|no such file"):
            engines.load_archive(engine, iter(()), "lab")
