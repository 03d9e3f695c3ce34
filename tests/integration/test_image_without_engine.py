"""Images built without an engine, a network or root, checked with other tools."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision import lockfile as locks
from provision.core import container
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.paths import Folders
from provision.core.types import Image, Lock, Prefix
from provision.image import compress, export, layer_cache, oci_layout
from provision.image.disk_base import read_disk_base
from provision.workflow.context import Context
from provision.workflow.image.image import ensure_image
from provision.workflow.plan import BuildRequest, Plan
from tests.integration.test_image import EnvironmentParts, Watching, build, resolution
from tests.unit.image.test_image_disk_base import layout

NOBODY = 65534
BUILD = """
import pickle, sys
from pathlib import Path
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from provision.image.disk_base import read_disk_base
from provision.environment import runtime_package
from provision.core import container
from tests.integration.test_image import Watching, install
packages, wheels, resolution, lock, prefix, base, runtime, cache, to = pickle.load(open(sys.argv[1], "rb"))
files = runtime_package.load(runtime).files
base = read_disk_base(base)
recipe = Recipe(resolution=resolution, lock=lock, base=base, runtime=files)
made = build_image(
    recipe, layout=to, byte_code=prefix.path, progress=Watching(),
    install=lambda staging: install(staging, Path(container.PREFIX), packages, wheels, cache),
)
print(made.manifest_digest)
"""


@pytest.fixture(scope="module")
def environment_parts() -> Iterator[EnvironmentParts]:
    """In a folder that others may read, which pytest's own are not: a lock names the packages of a local channel by their paths."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield EnvironmentParts(Path(name))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime") / "provision_runtime"
    folder.mkdir()
    (folder / "__main__.py").write_text("print('tested')\n")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layout(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def lock(environment_parts: EnvironmentParts) -> Lock:
    return environment_parts.lock()


@pytest.fixture(scope="module")
def prefix(environment_parts: EnvironmentParts, lock: Lock) -> Prefix:
    return environment_parts.prefix(environment_parts.folder / "prefix", lock)


@pytest.fixture(scope="module")
def toy_image(
    environment_parts: EnvironmentParts,
    lock: Lock,
    prefix: Prefix,
    base: Path,
    runtime: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Image:
    return build(
        environment_parts,
        lock,
        prefix,
        read_disk_base(f"oci:{base}"),
        runtime,
        tmp_path_factory.mktemp("layouts") / "toy",
    )


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compressed layers are kept, so that each is compressed once."""
    return tmp_path_factory.mktemp("packed")


@pytest.mark.exhaustive
@pytest.mark.mounts
@pytest.mark.needs("setpriv", "faketime")
def test_unprivileged_offline_build_gives_the_same_image(
    environment_parts: EnvironmentParts,
    lock: Lock,
    prefix: Prefix,
    base: Path,
    runtime: Path,
    toy_image: Image,
    tmp_path: Path,
) -> None:
    """One with another umask, in another place, time zone, year and locale, and with another hash seed."""
    unprivileged = environment_parts.folder / "theirs"
    unprivileged.mkdir()
    for source, name in ((base, "base"), (runtime, "runtime")):
        shutil.copytree(source, unprivileged / name, symlinks=True)
    work = environment_parts.conda, environment_parts.wheels, resolution(), lock, prefix
    (unprivileged / "work").write_bytes(
        pickle.dumps(
            (
                *work,
                f"oci:{unprivileged / 'base'}",
                unprivileged / "runtime",
                unprivileged / "cache",
                unprivileged / "out",
            )
        )
    )
    subprocess.run(["chown", "-R", str(NOBODY), unprivileged], check=True)
    isolated = [
        "faketime",
        "2001-02-03 04:05:06",
        "unshare",
        "--net",
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        # It may read the sources, wherever their clone lies.
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(unprivileged),
        "TMPDIR": str(unprivileged),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    odd = {"LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"}
    result = subprocess.run(
        [*isolated, sys.executable, "-c", BUILD, str(unprivileged / "work")],
        env={**environment, **odd, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False, umask=0o077,
    )  # fmt: skip
    assert result.stdout.split() == [toy_image.manifest_digest], result.stderr


@pytest.mark.parametrize(
    "kind",
    # skopeo 1.9 gives what it unpacks to the owner that the archive names.
    ["oci", pytest.param("oci-archive", marks=pytest.mark.root)],
)
@pytest.mark.needs("skopeo")
def test_skopeo_reads_the_layout(toy_image: Image, tmp_path: Path, kind: str) -> None:
    """As it is, and packed by tar."""
    export.export_image(toy_image, tmp_path / "out")
    if kind == "oci-archive":
        (tmp_path / "out").rename(tmp_path / "layout")
        pack = ["tar", "-c", "-f", str(tmp_path / "out"), "-C", str(tmp_path / "layout"), "."]
        subprocess.run(pack, check=True)
    copied = tmp_path / "copied"
    subprocess.run(
        [
            "skopeo",
            "copy",
            "--quiet",
            "--insecure-policy",
            f"{kind}:{tmp_path / 'out'}",
            f"oci:{copied}",
        ],
        check=True,
    )
    result = json.loads(
        subprocess.run(
            ["skopeo", "inspect", "--config", f"oci:{copied}"], check=True, capture_output=True
        ).stdout
    )
    assert result["config"]["Labels"]["org.provision.lock"] == toy_image.lock_sha256
    assert result["rootfs"]["diff_ids"] == [layer.digest for layer in toy_image.layers]
    if kind == "oci":
        completed = subprocess.run(
            ["skopeo", "inspect", f"oci:{tmp_path / 'out'}"], check=True, capture_output=True
        )
        assert json.loads(completed.stdout)["Digest"] == toy_image.manifest_digest


@pytest.mark.exhaustive
@pytest.mark.needs("skopeo")
def test_skopeo_decompresses_the_layers(
    toy_image: Image, packed_folder: Path, tmp_path: Path
) -> None:
    packed = compress.compress_image(toy_image, "zstd", packed_folder, Watching())
    export.export_image(packed, tmp_path / "out")
    copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-decompress"]
    subprocess.run([*copy, f"oci:{tmp_path / 'out'}", f"dir:{tmp_path / 'plain'}"], check=True)
    rows = json.loads((tmp_path / "plain" / "manifest.json").read_text())["layers"]
    assert [row["digest"] for row in rows] == [layer.digest for layer in toy_image.layers]


@pytest.mark.exhaustive
@pytest.mark.needs("umoci")  # 0.4.7 knows no zstd
@pytest.mark.root
def test_umoci_unpacks_the_layout(toy_image: Image, tmp_path: Path) -> None:
    export.export_image(toy_image, tmp_path / "out")
    subprocess.run(
        [
            "umoci",
            "unpack",
            "--image",
            f"{tmp_path / 'out'}:{toy_image.reference}",
            tmp_path / "bundle",
        ],
        check=True,
    )
    root = tmp_path / "bundle" / "rootfs"
    environment = root / container.PREFIX.lstrip("/")
    assert (
        (environment / "bin" / "greet").read_text().startswith(f"#!{container.PREFIX}/bin/python")
    )
    assert (root / "etc" / "os-release").read_text() == "debian"
    assert (environment / "bin" / "python").exists()
    run = json.loads((tmp_path / "bundle" / "config.json").read_text())["process"]
    assert (run["user"]["uid"], run["cwd"]) == (1000, "/workspace")


def plan_on(base: str, context: Context, lock: Lock, prefix: Prefix) -> Plan:
    """The plan of a build on this base."""
    nothing = locks.LockInputs(
        environment="", virtual_packages="", conda=(), pip=(), channels=(), machines={}, sha256=""
    )  # fmt: skip
    resolved = replace(resolution(), spec=replace(resolution().spec, base=base))
    return Plan(
        request=BuildRequest(), folder=context.folders.envs,
        resolution=resolved, spec_content={}, templates=context.templates, texts={}, inputs=nothing, lock=lock,
        lock_is_current=True, python_from="host", prefix_path=prefix.path,
    )  # fmt: skip


def test_a_second_build_makes_nothing(
    environment_parts: EnvironmentParts,
    lock: Lock,
    prefix: Prefix,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = environment_parts.folder / "cache-of-all"
    folders = Folders(data=tmp_path / "data", cache=cache, envs=tmp_path / "envs")
    context = Context(folders=folders, progress=Watching())
    plan = plan_on(f"oci:{base}", context, lock, prefix)
    made, is_new = ensure_image(context, plan, lock, prefix, None)
    assert is_new
    assert ensure_image(context, plan, lock, prefix, None) == (made, False)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert ensure_image(context, plan, lock, prefix, None)[1]


def test_a_base_that_is_neither_on_disk_nor_in_an_engine_is_refused(
    environment_parts: EnvironmentParts, lock: Lock, prefix: Prefix, tmp_path: Path
) -> None:
    cache = environment_parts.folder / "cache-of-all"
    folders = Folders(data=tmp_path / "data", cache=cache, envs=tmp_path / "envs")
    context = Context(folders=folders, progress=Watching())
    with pytest.raises(ToolMissing, match=r"docker://debian:12 oci:DIR"):
        ensure_image(context, plan_on("debian:12", context, lock, prefix), lock, prefix, None)


def test_written_layout_is_complete(toy_image: Image, tmp_path: Path) -> None:
    export.export_image(toy_image, tmp_path / "out")
    read_back = oci_layout.read(tmp_path / "out")
    assert read_back is not None
    assert (read_back.manifest_digest, read_back.config_digest) == (
        toy_image.manifest_digest,
        toy_image.image_id,
    )


def test_copy_gets_its_name_only_when_complete(tmp_path: Path) -> None:
    """From another file system, where a second name will not do: bytes that are not what their name says are not passed on."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if Path(name).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        whole, damaged = Path(name) / hashlib.sha256(b"whole").hexdigest(), Path(name) / ("0" * 64)
        for blob in (whole, damaged):
            blob.write_bytes(b"whole")
        layer_cache.link_or_copy(whole, tmp_path / whole.name)
        with pytest.raises(IntegrityError, match="is corrupt"):
            layer_cache.link_or_copy(damaged, tmp_path / damaged.name)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


@pytest.mark.exhaustive
def test_only_the_image_is_exported(toy_image: Image, tmp_path: Path) -> None:
    """Not what else lies in its folder; and an image that has lost a file is not written at all."""
    shutil.copytree(toy_image.layout, tmp_path / "layout")
    own_image = replace(toy_image, layout=tmp_path / "layout")
    (oci_layout.blobs(own_image.layout) / ".left").write_text("by somebody")
    export.export_image(own_image, tmp_path / "oci")
    assert {path.name for path in oci_layout.blobs(tmp_path / "oci").iterdir()} == {
        path.name for path in oci_layout.blobs(toy_image.layout).iterdir()
    }
    oci_layout.blob(own_image.layout, toy_image.image_id).unlink()
    with pytest.raises(IntegrityError):
        export.export_image(own_image, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
