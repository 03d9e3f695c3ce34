"""Images with real parts: packages linked by rattler, wheels installed by uv_executable, an image run by the Docker engine."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import channel
from provision.adapters import conda
from provision.adapters.docker import require_engine, uses_containerd_store
from provision.adapters.http import sha256_of
from provision.adapters.uv import uv_executable
from provision.core import container
from provision.core.errors import (
    InUse,
    InvalidSpec,
    TimedOut,
    ToolMissing,
    Unreachable,
)
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.core.types import Image, Lock, LockedPackage, Prefix, Resolution
from provision.environment import bytecode, install_record, runtime_package
from provision.environment import prefix as prefixes
from provision.image import container_smoke, docker, oci_layout
from provision.image.base import BaseImage
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from provision.image.docker import (
    find_engine_base,
    load_image,
    removable_images,
    remove_images,
    runnable_name,
)
from provision.image.engine_record import record_path
from tests.integration import shared_parts
from tests.unit.image.test_image_config import resolution as unit_resolution

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]

PYTHON = channel.host_minor()


class Watching:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.meters: dict[str, int] = {}
        self.advanced = 0

    def info(self, text: str) -> None:
        self.messages.append(text)

    warn = info

    def meter(self, title: str, total: int) -> Watching:
        self.meters[title] = total
        return self

    def advance(self, amount: int) -> None:
        self.advanced += amount

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


@pytest.fixture(scope="session")
def docker_client() -> Any:
    return require_engine()


class EnvironmentParts:
    """Parts of an environment: a channel, wheels, a lock of both, and prefixes realized from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = shared_parts.conda_packages()
        (packaged,) = shared_parts.packaged_python().glob("py*")
        self.channel = folder / "channel" / packaged.name
        shutil.copytree(packaged, self.channel, symlinks=True)
        self._assemble_tool()
        conda.index_channel(self.channel)
        names = ("python", "pip", "tool")
        self.conda = conda.Solver().solve(
            conda.SolveRequest(
                specs=tuple(names),
                channels=(self.channel.as_uri(),),
                virtual_packages=(("__glibc", "2.36"),),
            )
        )
        self.wheels = [
            wheel(
                folder,
                "greet",
                "1.0",
                {"greet/__init__.py": "def main():\n    print('hello')\n"},
                script="greet",
            ),
            wheel(
                folder,
                "nvidia-toy-cu12",
                "12.1.1",
                {"nvidia/__init__.py": "", "nvidia/toy/lib/libtoy.so": "x" * 3000000},
            ),
            wheel(
                folder,
                "nvidia-other-cu12",
                "12.1.2",
                {"nvidia/__init__.py": "", "nvidia/other.py": "y = 1\n"},
            ),
        ]

    def _assemble_tool(self) -> None:
        """A package whose files name the prefix it was built in, with a link and a name too long for a plain tar header."""
        built_in = "/built/in_" + "placehold_" * 20
        deep = f"share/{'long-' * 25}/{'name-' * 25}/grüße.txt"
        files = {"bin/tool": f"#!/bin/sh\necho {built_in}/share\n".encode(), deep: b"x"}
        paths = [
            {
                "_path": path,
                "path_type": "hardlink",
                "sha256": hashlib.sha256(text).hexdigest(),
                "size_in_bytes": len(text),
            }
            for path, text in files.items()
        ]
        paths[0].update(prefix_placeholder=built_in, file_mode="text")
        paths.append({"_path": "bin/alias", "path_type": "softlink"})
        about = {
            "name": "tool",
            "version": "1.0",
            "build": "h_0",
            "build_number": 0,
            "subdir": PLATFORM,
            "depends": [],
        }
        files["info/index.json"] = json.dumps(about).encode()
        files["info/paths.json"] = json.dumps({"paths": paths, "paths_version": 1}).encode()
        with tarfile.open(self.channel / PLATFORM / "tool-1.0-h_0.tar.bz2", "w:bz2") as package:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(text), 0o700 if path == "bin/tool" else 0o600
                package.addfile(member, io.BytesIO(text))
            link = tarfile.TarInfo("bin/alias")
            link.type, link.linkname = tarfile.SYMTYPE, "tool"
            package.addfile(link)

    def lock(self, *wheels: Path) -> Lock:
        pip = tuple(_locked(path) for path in wheels or self.wheels)
        packages = (*self.conda, *pip)
        digest = hashlib.sha256(
            repr([(package.name, package.sha256) for package in packages]).encode()
        ).hexdigest()
        return Lock(
            path=self.folder / "conda-lock.yml",
            sha256=digest,
            inputs_sha256="0" * 64,
            content_hash="0" * 64,
            packages=packages,
            python_from="host",
            portable=False,
        )

    def prefix(self, path: Path, lock: Lock, *wheels: Path) -> Prefix:
        install(path, path, self.conda, wheels or self.wheels, self.cache)
        subprocess.run(
            [path / "bin" / "python", "-c", "import greet, json"], check=True
        )  # leaves __pycache__
        bytecode.compile_all(path, "checked-hash", shared_parts.byte_code())
        install_record.write(path)
        return Prefix(name="toy", path=path, lock_sha256=lock.sha256)


def install(
    path: Path,
    final: Path,
    packages: Sequence[LockedPackage],
    wheels: Sequence[Path],
    cache: Path,
) -> None:
    """Conda packages and wheels in a folder, as they will be at `final`."""
    path.mkdir(parents=True)
    conda.install_packages(packages, path, final=final, cache=cache, progress=Watching())
    command = [uv_executable(), "pip", "install", "--quiet", "--no-deps", "--no-index", "--offline"]
    files = [os.fspath(file) for file in wheels]
    subprocess.run([*command, "--python", path / "bin" / "python", *files], check=True)
    prefixes._rewrite_scripts(path, path, final)


def wheel(
    folder: Path, name: str, version: str, files: dict[str, str], script: str | None = None
) -> Path:
    """A wheel as a build back end writes it."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    content[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if script:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    rows = [f"{path},sha256={_record_hash(text)},{len(text)}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    parts = folder / "wheels" / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    parts.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(parts, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return parts


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _locked(path: Path) -> LockedPackage:
    name, version = path.name.split("-")[:2]
    digest = sha256_of(path)
    return LockedPackage(
        manager="pip",
        name=name.replace("_", "-"),
        version=version,
        url=path.as_uri(),
        sha256=digest,
    )


def resolution(name: str = "toy", cuda: str | None = "12.1") -> Resolution:
    return replace(
        unit_resolution(cuda),
        spec=Spec(name=name, torch="2.3", cuda=cuda),
        python=PYTHON,
        nccl="2.20.5",
        cudnn="8.9.2",
        architectures=("sm_90",),
        driver_floor="525.60.13",
    )


RUNTIME = '''"""Stands in for provision_runtime: does what its options say, and reports."""
import getpass, json, os, pathlib, socket, sys, time
options = dict(pair.split("=", 1) for pair in sys.argv if "=" in pair)
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
import greet
report = {"argv": sys.argv[1:], "user": getpass.getuser(), "uid": os.getuid(), "pid": os.getpid(), "cwd": os.getcwd(),
          "host": socket.gethostbyname(socket.gethostname()), "prefix": sys.prefix,
          "shm": os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks}
(out / "report.json").write_text(json.dumps(report))
print("working", flush=True)
time.sleep(float(options.get("sleep", 0)))
sys.exit(int(options.get("status", 0)))
'''


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentParts:
    return EnvironmentParts(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime") / "provision_runtime"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "x.cpython-311.pyc").write_text("host")
    (folder / "__main__.py").write_text(RUNTIME)
    return folder


@pytest.fixture(scope="module")
def base(docker_client: Any, docker_base: str) -> BaseImage:
    return find_engine_base(docker_client, docker_base, Watching())


@pytest.fixture(scope="module")
def lock(parts: EnvironmentParts) -> Lock:
    return parts.lock()


@pytest.fixture(scope="module")
def prefix(parts: EnvironmentParts, lock: Lock, tmp_path_factory: pytest.TempPathFactory) -> Prefix:
    return parts.prefix(tmp_path_factory.mktemp("prefix") / "toy", lock)


@pytest.fixture(scope="module")
def make(
    parts: EnvironmentParts, lock: Lock, prefix: Prefix, base: BaseImage, runtime: Path
) -> Callable[..., Image]:
    """Builds the toy image in a layout."""
    return functools.partial(build, parts, lock, prefix, base, runtime)


@pytest.fixture(scope="module")
def toy_image(make: Callable[..., Image], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make(tmp_path_factory.mktemp("layouts") / "toy")


def build(
    parts: EnvironmentParts,
    lock: Lock,
    prefix: Prefix,
    base: BaseImage,
    runtime: Path,
    layout: Path,
    *wheels: Path,
    **more: Any,
) -> Image:
    recipe = Recipe(
        resolution=resolution(),
        lock=lock,
        base=base,
        runtime=runtime_package.load(runtime).files,
        **more,
    )

    def install_packages(staging: Path) -> None:
        final = Path(container.PREFIX)
        install(staging, final, parts.conda, wheels or parts.wheels, parts.cache)

    return build_image(
        recipe,
        layout=layout,
        install=install_packages,
        byte_code=prefix.path,
        progress=Watching(),
    )


@pytest.fixture(scope="module")
def loaded(toy_image: Image, docker_client: Any) -> Iterator[Image]:
    assert load_image(toy_image, docker_client, Watching())
    yield toy_image
    remove_images(toy_image.layout, docker_client)


def members(layout: Image, group: str) -> dict[str, tarfile.TarInfo]:
    layer = next(layer for layer in layout.layers if layer.group == group)
    with tarfile.open(oci_layout.blob(layout.layout, layer.digest)) as archive:
        return {member.name: member for member in archive}


def run(client: Any, parts: Image, *command: str, **options: Any) -> str:
    return str(
        client.containers.run(
            docker.find_engine_id(parts, client),
            list(command),
            remove=True,
            network_mode="none",
            **options,
        ).decode()
    )


def test_layout_is_complete_and_grouped(toy_image: Image) -> None:
    assert [layer.group for layer in toy_image.layers] == [
        "base",
        "cuda",
        "python",
        "rest",
        "provision",
    ]
    for layer in toy_image.layers:
        assert (
            f"sha256:{sha256_of(oci_layout.blob(toy_image.layout, layer.digest))}" == layer.digest
        )
    config = json.loads(oci_layout.blob(toy_image.layout, toy_image.image_id).read_bytes())
    assert config["rootfs"]["diff_ids"] == [layer.digest for layer in toy_image.layers]
    assert sorted(path.name for path in toy_image.layout.iterdir()) == [
        "blobs",
        "index.json",
        "layers.json",
        "oci-layout",
    ]
    assert len(list((toy_image.layout / "blobs" / "sha256").iterdir())) == len(toy_image.layers) + 2
    assert list(toy_image.layout.parent.iterdir()) == [toy_image.layout]


def test_image_has_no_host_paths(toy_image: Image, prefix: Prefix, parts: EnvironmentParts) -> None:
    for group in ("python", "cuda", "rest", "provision"):
        layer = next(layer for layer in toy_image.layers if layer.group == group)
        content = oci_layout.blob(toy_image.layout, layer.digest).read_bytes()
        for path in (prefix.path, parts.channel, parts.cache):
            assert os.fsencode(path) not in content, group
        for member in members(toy_image, group).values():
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.mtime == 315532800
            assert member.mode in (0o644, 0o755, 0o777) or member.name == "workspace"
            assert not member.name.endswith(("direct_url.json", "uv_cache.json", "CACHEDIR.TAG"))


def test_digest_does_not_depend_on_the_prefix_path(
    parts: EnvironmentParts,
    lock: Lock,
    toy_image: Image,
    base: BaseImage,
    runtime: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = (
        tmp_path / "a folder with spaces" / ("long" * 40)
    )  # makes uv_executable write `#!/bin/sh` scripts
    before = os.umask(0o077)
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    try:
        prefix = parts.prefix(elsewhere, lock)
        again = build(parts, lock, prefix, base, runtime, tmp_path / "layout")
    finally:
        os.umask(before)
    assert (elsewhere / "bin" / "greet").read_bytes().startswith(b"#!/bin/sh")
    assert again.layers == toy_image.layers
    assert again.manifest_digest == toy_image.manifest_digest


@pytest.mark.exhaustive
def test_edits_of_the_prefix_do_not_get_into_the_image(
    parts: EnvironmentParts,
    toy_image: Image,
    base: BaseImage,
    runtime: Path,
    tmp_path: Path,
) -> None:
    lock = parts.lock()
    prefix = parts.prefix(tmp_path / "toy", lock)
    code = prefix.path / "lib" / f"python{PYTHON}" / "site-packages" / "greet" / "__init__.py"
    code.unlink()  # it is a hard link into uv's cache
    code.write_text("print('edited')\n")
    assert build(parts, lock, prefix, base, runtime, tmp_path / "layout").layers == toy_image.layers


def test_record_describes_the_image(loaded: Image, docker_client: Any) -> None:
    program = """
import base64, csv, hashlib, importlib.metadata, pathlib
for found in importlib.metadata.distributions():
    if found.metadata["Name"] == "pip": continue
    root = pathlib.Path(found._path).parent
    for name, digest, size in csv.reader((found._path / "RECORD").read_text().splitlines()):
        content = (root / name).read_bytes()
        if digest:
            assert len(content) == int(size), name
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("="), name
    print(found.metadata["Name"])
"""
    names = run(docker_client, loaded, "/opt/env/bin/python", "-c", program).split()
    assert sorted(names) == ["greet", "nvidia-other-cu12", "nvidia-toy-cu12", "provision-runtime"]


@pytest.mark.parametrize("user", [None, "4321:99", "0"])
def test_container_works_with_any_user(loaded: Image, docker_client: Any, user: str | None) -> None:
    options = {"user": user} if user else {}
    assert run(docker_client, loaded, "greet", **options) == "hello\n"
    assert run(docker_client, loaded, "tool", **options) == "/opt/env/share\n"
    assert run(docker_client, loaded, "alias", **options) == "/opt/env/share\n"
    lines = run(
        docker_client,
        loaded,
        "sh",
        "-c",
        "id -u; pwd; touch $HOME/x y; command -v python; env",
        **options,
    ).splitlines()
    assert lines[:3] == [(user or "1000").split(":")[0], "/workspace", "/opt/env/bin/python"]
    assert {
        "HOME=/tmp",
        "PYTHONNOUSERSITE=1",
        "CONDA_PREFIX=/opt/env",
        "NVIDIA_VISIBLE_DEVICES=all",
    } <= set(lines)
    assert "NVIDIA_REQUIRE_CUDA=cuda>=12.1 driver>=525.60.13" in lines
    assert f"PROVISION_LOCK_HASH={loaded.lock_sha256}" in lines


def test_second_load_sends_nothing(loaded: Image, docker_client: Any) -> None:
    assert docker.find_engine_id(loaded, docker_client)
    watching = Watching()
    assert not load_image(loaded, docker_client, watching)
    assert watching.advanced == 0
    tags = docker_client.images.get(docker.find_engine_id(loaded, docker_client)).tags
    assert sorted(tags) == sorted(
        [f"provision/toy:{loaded.lock_sha256[:12]}", "provision/toy:latest"]
    )


def test_engine_reports_image_and_config(loaded: Image, docker_client: Any) -> None:
    """By what an engine with containerd's image store is asked, which knows no image id."""
    loaded_image = docker_client.images.get(docker.find_engine_id(loaded, docker_client))
    assert docker.is_same(loaded_image.attrs, loaded)
    for key, other in (("Env", ["A=b"]), ("Labels", {}), ("Entrypoint", ["sh"])):
        assert not docker.is_same(
            {**loaded_image.attrs, "Config": {**loaded_image.attrs["Config"], key: other}}, loaded
        )
    assert not docker.is_same(
        {**loaded_image.attrs, "RootFS": {"Layers": loaded_image.attrs["RootFS"]["Layers"][1:]}},
        loaded,
    )
    assert docker.config_digest_in(loaded_image.save()) == loaded.image_id
    assert uses_containerd_store(docker_client) == (loaded_image.id != loaded.image_id)


def test_user_tags_stay(loaded: Image, docker_client: Any) -> None:
    engine_id = docker.find_engine_id(loaded, docker_client)
    docker_client.api.tag(engine_id, "provision-test-lab/toy", "2")
    try:
        remove_images(loaded.layout, docker_client)
        assert docker_client.images.get(engine_id).tags == ["provision-test-lab/toy:2"]
        # It is there. containerd has no id by which we would know it, and is sent it once more.
        is_sent = load_image(loaded, docker_client, Watching())
        assert is_sent == uses_containerd_store(docker_client)
    finally:
        docker_client.images.remove("provision-test-lab/toy:2")


@pytest.mark.exhaustive
def test_small_change_sends_small_layers(
    parts: EnvironmentParts,
    base: BaseImage,
    runtime: Path,
    loaded: Image,
    docker_client: Any,
    tmp_path: Path,
) -> None:
    changed = wheel(
        tmp_path,
        "greet",
        "1.1",
        {"greet/__init__.py": "def main():\n    print('again')\n"},
        script="greet",
    )
    wheels = [changed, *parts.wheels[1:]]
    lock = parts.lock(*wheels)
    other = build(
        parts,
        lock,
        parts.prefix(tmp_path / "toy", lock, *wheels),
        base,
        runtime,
        tmp_path / "layout",
        *wheels,
    )
    assert other.layers[:3] == loaded.layers[:3]
    watching = Watching()
    try:
        assert load_image(other, docker_client, watching)
        size = sum(layer.size for layer in other.layers)
        assert uses_containerd_store(docker_client) or watching.advanced < 0.01 * size
        assert run(docker_client, other, "greet") == "again\n"
    finally:
        remove_images(other.layout, docker_client)


def test_engine_that_needs_all_layers_gets_them(
    loaded: Image, docker_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the engine had lost a layer between our question and the load: it refuses, and is sent everything."""
    remove_images(loaded.layout, docker_client)
    monkeypatch.setattr(docker, "_shared_layers", lambda image, client: len(image.layers))
    watching = Watching()
    assert load_image(loaded, docker_client, watching)
    assert watching.advanced > sum(layer.size for layer in loaded.layers)
    assert run(docker_client, loaded, "greet") == "hello\n"


def own_image_name() -> tuple[str, int]:
    """A name and a creation date of this run: a run that was killed may have left its images."""
    token = secrets.randbelow(10**9)
    return f"provision/test-{token}", token


@pytest.mark.exhaustive
def test_retagging_build_leaves_no_dangling_image(
    make: Callable[..., Image],
    docker_client: Any,
    tmp_path: Path,
) -> None:
    layout = tmp_path / "toy"
    name, epoch = own_image_name()
    older = make(layout, epoch=epoch)
    older = replace(older, reference=f"{name}:1")
    load_image(older, docker_client, Watching())
    older_id = docker.find_engine_id(older, docker_client)
    newer = replace(
        make(layout, epoch=epoch + 1),
        reference=older.reference,
    )
    load_image(newer, docker_client, Watching())
    newer_id = docker.find_engine_id(newer, docker_client)
    try:
        ids = docker_client.api.images(all=True, quiet=True)
        assert newer_id in ids
        assert older_id not in ids
        assert sorted(removable_images(layout, docker_client)) == [
            f"{name}:1",
            f"{name}:latest",
        ]
    finally:
        remove_images(layout, docker_client)
    assert newer_id not in docker_client.api.images(all=True, quiet=True)
    assert not record_path(layout).exists()


@pytest.mark.exhaustive
def test_images_of_another_user_stay(
    make: Callable[..., Image],
    lock: Lock,
    docker_client: Any,
    tmp_path: Path,
) -> None:
    """Two users, each with data of their own, one engine, the same environment's name."""
    name, epoch = own_image_name()
    shared = f"{name}:{lock.sha256[:12]}"
    theirs = tmp_path / "theirs" / "toy"
    other_users = make(theirs, epoch=epoch)
    other_users = replace(other_users, reference=shared)
    own = make(tmp_path / "ours" / "toy", epoch=epoch + 1)
    load_image(other_users, docker_client, Watching())
    their_id = docker.find_engine_id(other_users, docker_client)
    try:
        for reference in (f"{name}:2", shared):
            watching = Watching()
            load_image(replace(own, reference=reference), docker_client, watching)
            assert any("is not your image" in text for text in watching.messages)
        assert docker_client.images.get(f"{name}:latest").id == their_id
        assert docker_client.images.get(shared).id == their_id
        assert runnable_name(docker_client, theirs, shared) == shared
        assert runnable_name(docker_client, own.layout, shared) == docker.find_engine_id(
            own, docker_client
        )
        # The same image, loaded by one user and built by the other.
        same = make(tmp_path / "same" / "toy", epoch=epoch)
        assert not load_image(replace(same, reference=shared), docker_client, Watching())
        assert remove_images(same.layout, docker_client) == ()
        sizes = removable_images(own.layout, docker_client)
        assert list(sizes) == [f"{name}:2"] and all(size > 1e6 for size in sizes.values())
        assert remove_images(own.layout, docker_client) == (f"{name}:2",)
        assert docker_client.images.get(shared).id == their_id
    finally:
        remove_images(other_users.layout, docker_client)


def test_image_derived_by_a_user_stays(loaded: Image, docker_client: Any) -> None:
    """It has our labels, since it inherits them, and no tag."""
    container = docker_client.containers.create(
        docker.find_engine_id(loaded, docker_client), ["true"]
    )
    derived = container.commit(conf={"Labels": {"lab": "theirs"}})
    container.remove()
    try:
        load_image(loaded, docker_client, Watching())
        assert (
            docker_client.images.get(derived.id).labels["org.opencontainers.image.title"] == "toy"
        )
    finally:
        docker_client.images.remove(derived.id)


class Leaky:
    """The engine on the socket `path`, behind a connection that breaks once `limit` bytes were sent to it."""

    def __init__(self, path: str, limit: int) -> None:
        self._path, self._limit = path, limit
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._path)
                for source, target, limit in (
                    (client, engine, self._limit),
                    (engine, client, sys.maxsize),
                ):
                    threading.Thread(
                        target=self._pass_on, args=(source, target, limit), daemon=True
                    ).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while left > 0 and (data := source.recv(65536)):
                target.sendall(data)
                left -= len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._server.close()


@pytest.mark.exhaustive
def test_engine_disconnects_during_load(
    loaded: Image,
    make: Callable[..., Image],
    docker_client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheme, _, path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if scheme != "unix":
        pytest.skip(f"the engine is not on a socket of this machine: DOCKER_HOST is {scheme}://…")
    other = make(tmp_path / "toy", epoch=2)
    leaky = Leaky(path, limit=2_000_000)
    monkeypatch.setenv("DOCKER_HOST", leaky.address)
    client = require_engine()
    with pytest.raises(Unreachable, match=r"broke: could not load provision/toy:.*docker info"):
        load_image(other, client, Watching())
    client.close()
    leaky.close()
    try:
        load_image(other, docker_client, Watching())
        assert run(docker_client, other, "greet") == "hello\n"
    finally:
        remove_images(other.layout, docker_client)
    assert not load_image(loaded, docker_client, Watching())  # it never left


def test_smoke_report_is_copied_out(loaded: Image, docker_client: Any, tmp_path: Path) -> None:
    status, printed = container_smoke.run_smoke(
        docker_client, loaded, ["status=1"], tmp_path, timeout_s=60, gpus=True
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (status, printed) == (1, "working\n")
    assert report["argv"][0] == "smoke" and report["argv"][-1] == "status=1"
    assert (report["uid"], report["user"], report["prefix"], report["cwd"]) == (
        1000,
        "provision",
        "/opt/env",
        "/workspace",
    )
    assert report["host"] == "127.0.0.1" and report["shm"] == 1 << 30
    assert report["pid"] != 1  # init is
    assert containers(docker_client) == []


def test_hanging_smoke_test_is_ended(loaded: Image, docker_client: Any, tmp_path: Path) -> None:
    with pytest.raises(TimedOut) as caught:
        container_smoke.run_smoke(docker_client, loaded, ["sleep=3600"], tmp_path, timeout_s=3)
    assert "working" in caught.value.details
    assert (tmp_path / "report.json").exists()
    assert containers(docker_client) == []


def test_smoke_leaves_no_container_on_ctrl_c(
    loaded: Image, docker_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(container: Any, timeout_s: float) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(container_smoke, "wait_for_exit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        container_smoke.run_smoke(docker_client, loaded, ["sleep=60"], tmp_path, timeout_s=60)
    assert containers(docker_client) == []


def containers(client: Any) -> list[Any]:
    return list(
        client.containers.list(all=True, filters={"label": "org.provision.smoke=provision/toy"})
    )


def test_image_in_use_is_not_removed(loaded: Image, docker_client: Any) -> None:
    container = docker_client.containers.create(loaded.reference, ["true"])
    try:
        with pytest.raises(InUse, match="container is in the way"):
            remove_images(loaded.layout, docker_client)
    finally:
        container.remove()
    load_image(loaded, docker_client, Watching())  # some tags may be gone
    assert len(remove_images(loaded.layout, docker_client)) >= 2
    assert load_image(loaded, docker_client, Watching())


def test_unavailable_base(docker_client: Any) -> None:
    watching = Watching()
    with pytest.raises(ToolMissing, match=r"localhost:1/no/such:tag .*--base"):
        find_engine_base(docker_client, "localhost:1/no/such:tag", watching)
    assert watching.messages == ["pulling the base image localhost:1/no/such:tag"]


def test_base_of_another_architecture(docker_client: Any) -> None:
    config = json.dumps(
        {
            "architecture": "arm64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": []},
        }
    )
    name = "provision-test-arm:latest"
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": []}])
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as members:
        for path, text in (("config.json", config), ("manifest.json", manifest)):
            member = tarfile.TarInfo(path)
            member.size = len(text)
            members.addfile(member, io.BytesIO(text.encode()))
    docker_client.images.load(archive.getvalue())
    try:
        with pytest.raises(InvalidSpec, match="linux/arm64"):
            find_engine_base(docker_client, name, Watching())
    finally:
        docker_client.images.remove(name)
