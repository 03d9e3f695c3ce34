"""Images for linux/amd64 and linux/arm64 from one lock, and an index of both in a real registry.

No machine of CI has an aarch64: its channel has this machine's Python under the other platform's name.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import conda
from provision.adapters.zstd import zstd
from tests.integration.conftest import NO_INDEXES, Home, make_home
from tests.integration.registries import REPORT, make_image, push, serving
from tests.small import write_index, write_wheel
from tests.unit.image.test_image_disk_base import layout

pytestmark = [pytest.mark.needs("docker-registry", "skopeo")]

NAME = "both"
OTHER = "linux-aarch64"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def relabel(package: Path, target: Path) -> None:
    """A conda package as one of the other platform, with the same files."""
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            if name.startswith("info-"):
                plain = zstd.decompress(content)
                content = zstd.compress(_relabeled(plain))
            copy.writestr(name, content)


def _relabeled(archive: bytes) -> bytes:
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=buffer, mode="w") as copy,
    ):
        for member in source:
            file = source.extractfile(member)
            content = file.read() if file else b""
            if member.name == "info/index.json":
                content = json.dumps({**json.loads(content), "subdir": OTHER}).encode()
            member.size = len(content)
            copy.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def add_machine_wheels(index: Path) -> None:
    """A wheel `fast` for each processor, whose module names it."""
    page = index / "simple" / "fast" / "index.html"
    page.parent.mkdir()
    links = []
    for machine in MACHINES.values():
        plain = write_wheel(index / machine, "fast", "1.0")
        wheel = index / "files" / f"fast-1.0-py3-none-manylinux_2_17_{machine}.whl"
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(wheel, "w") as copy:
            contents = {name: source.read(name) for name in source.namelist()}
            contents["fast.py"] = f"machine = {machine!r}\n".encode()
            info = "fast-1.0.dist-info"
            contents[f"{info}/entry_points.txt"] = b"[console_scripts]\nfast = fast:main\n"
            rows = [f"{name},," for name in contents]
            contents[f"{info}/RECORD"] = "\n".join([*rows, ""]).encode()
            for name, content in contents.items():
                copy.writestr(name, content)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links.append(f'<a href="../../files/{wheel.name}#sha256={digest}">{wheel.name}</a>\n')
    page.write_text("".join(links))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, packaged_python: Path) -> Home:
    """A user with a lock for both platforms, and a base for both."""
    root = tmp_path_factory.mktemp("platforms") / "home"
    home = make_home(root, shares_packages=True)
    (packaged,) = packaged_python.glob("py*")
    channel = root / "channel"
    shutil.copytree(packaged / "linux-64", channel / "linux-64")
    (channel / OTHER).mkdir()
    for package in (channel / "linux-64").glob("*.conda"):
        relabel(package, channel / OTHER / package.name)
    conda.index_channel(channel)
    write_index(root)
    add_machine_wheels(root)
    layout(root / "base", platforms=("amd64", "arm64"), name=None)
    env = {
        **home.env,
        **NO_INDEXES,
        "UV_CACHE_DIR": str(root / "uv"),
        "UV_DEFAULT_INDEX": (root / "simple").as_uri(),
    }
    user = Home(root=root, env=env)
    request = ["--torch", "2.13", "--cpu", "--no-companions", "--pip", "fast"]
    request += ["--channel", channel.as_uri(), "--python-from", "channel", "--glibc", "2.36"]
    request += ["--platform", "linux-64", "--platform", OTHER, "--base", f"oci:{root / 'base'}"]
    locked = user.run("lock", NAME, *request)
    assert locked.returncode == 0, locked.stderr
    return user


def build(user: Home, platform: str) -> dict[str, Any]:
    shutil.rmtree(user.root / platform, ignore_errors=True)
    return user.json(
        "image", "build", NAME, "--platform", platform, "--output", f"oci:{user.root / platform}"
    )


@pytest.fixture(scope="module")
def native(user: Home) -> dict[str, Any]:
    return build(user, "linux-64")


@pytest.fixture(scope="module")
def other(user: Home, native: dict[str, Any]) -> dict[str, Any]:
    return build(user, OTHER)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def pushed(user: Home, native: object, other: object, registry: str) -> str:
    """The repository with an image for each platform."""
    repository = f"{registry}/lab/{NAME}"
    record_verdict(user)
    for platform, tag in (("linux-64", "amd64"), (OTHER, "arm64")):
        result = user.run("image", "push", NAME, f"{repository}:{tag}", "--platform", platform)
        assert result.returncode == 0, result.stderr
        is_tested = "#smoke-verdicts" in result.stdout
        assert is_tested == (platform == "linux-64"), result.stdout
        assert "not all" not in result.stderr
    return repository


def record_verdict(user: Home) -> None:
    """A smoke test of the prefix in the passport, as the build writes it: it is from this machine only."""
    path = next((user.project / "passports").glob(f"{NAME}/*.json"))
    passport = json.loads(path.read_text())
    passport["smoke"] = {
        "prefix": {"verdict": "pass", "measured_on": {"host": "node1"}, "report": REPORT}
    }
    path.write_text(json.dumps(passport))


def document(folder: Path, digest: str) -> dict[str, Any]:
    path = folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def files_of(folder: Path, image: dict[str, Any]) -> dict[str, bytes]:
    files = {}
    for layer in image["layers"]:
        path = folder / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    files[member.name] = file.read()
    return files


def test_an_image_of_the_other_platform_has_its_files(
    user: Home, native: dict[str, Any], other: dict[str, Any]
) -> None:
    config = document(user.root / OTHER, other["image_id"])
    assert config["architecture"] == "arm64"
    labels = config["config"]["Labels"]
    assert labels["org.provision.built-on"] == "linux-64"
    assert labels["org.provision.byte-code"] == "none"
    assert labels["org.provision.lock"] == native["lock_sha256"] == other["lock_sha256"]
    site = "opt/env/lib/python3.11/site-packages"
    theirs, ours = files_of(user.root / OTHER, other), files_of(user.root / "linux-64", native)
    assert theirs[f"{site}/fast.py"] == b"machine = 'aarch64'\n"
    assert ours[f"{site}/fast.py"] == b"machine = 'x86_64'\n"
    assert theirs["opt/env/bin/fast"].startswith(b"#!/opt/env/bin/python\n")
    assert not [name for name in theirs if name.endswith(".pyc")]
    sources = {name for name in ours if not name.endswith(".pyc")}
    assert sources == theirs.keys()
    for name in sources - {f"{site}/fast.py"}:
        is_record = "/conda-meta/" in name or name.endswith(("dist-info/RECORD", "dist-info/WHEEL"))
        assert is_record or theirs[name] == ours[name], name
    assert not [name for name, content in theirs.items() if str(user.root).encode() in content]


def test_the_same_lock_gives_the_same_image_again(user: Home, other: dict[str, Any]) -> None:
    shutil.rmtree(user.project / "images" / f"{NAME}+{OTHER}")
    assert build(user, OTHER)["manifest_digest"] == other["manifest_digest"]
    assert not list((user.project / "images").glob(".*building*"))


def test_each_platform_gets_its_image_from_an_index(
    user: Home, pushed: str, native: dict[str, Any], other: dict[str, Any]
) -> None:
    names = [f"{pushed}:arm64", f"{pushed}:amd64"]
    index = user.json("image", "index", f"{pushed}:2", *names)
    assert index == user.json("image", "index", f"{pushed}:2", *reversed(names))
    raw = inspect("--raw", f"{pushed}:2")
    assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == index["digest"]
    rows = json.loads(raw)["manifests"]
    assert {row["platform"]["architecture"]: row["digest"] for row in rows} == {
        "amd64": native["manifest_digest"],
        "arm64": other["manifest_digest"],
    }
    for architecture in MACHINES:
        seen = json.loads(inspect("--config", f"{pushed}:2", architecture))
        assert seen["architecture"] == architecture


def inspect(kind: str, reference: str, architecture: str = "amd64") -> bytes:
    command = ["skopeo", "--override-arch", architecture, "inspect", "--tls-verify=false", kind]
    return subprocess.run(
        [*command, f"docker://{reference}"], check=True, capture_output=True
    ).stdout


def test_images_that_no_index_can_join_are_refused(
    user: Home, pushed: str, registry: str, tmp_path: Path
) -> None:
    push(make_image(tmp_path / "toy"), f"{pushed}:toy")
    user.json("image", "index", f"{pushed}:3", f"{pushed}:arm64", f"{pushed}:amd64")
    refused = {
        "both for linux/amd64": [f"{pushed}:amd64", f"{pushed}:amd64"],
        "2 images for any platform": [f"{pushed}:3", f"{pushed}:amd64"],
        "not of one lock": [f"{pushed}:toy", f"{pushed}:arm64"],
        "another repository": [f"{registry}/lab/away:1", f"{pushed}:amd64"],
    }
    for reason, sources in refused.items():
        result = user.run("image", "index", f"{pushed}:4", *sources)
        assert (result.returncode, reason in result.stderr) == (3, True), result.stderr
    assert user.run("image", "index", f"{pushed}:4", f"{pushed}:none").returncode == 9
    with pytest.raises(subprocess.CalledProcessError):  # nothing was pushed
        inspect("--raw", f"{pushed}:4")


def test_a_platform_that_is_not_locked_is_refused(user: Home, native: object) -> None:
    """Before anything is done."""
    folder = user.envs / "one"
    shutil.copytree(user.envs / NAME, folder)
    user.run("lock", "one", "--relock", "--platform", "linux-64")
    result = user.run("image", "build", "one", "--platform", OTHER)
    assert result.returncode == 3
    assert OTHER in result.stderr
