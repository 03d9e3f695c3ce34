"""Images out of a real registry (Debian's docker-registry), over lines that break and lie."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from provision import image
from provision.core.errors import (
    IntegrityError,
    InUse,
    NoSpace,
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.paths import Folders
from provision.core.types import Image
from provision.image import disk_base, layer_cache, layers, oci_layout
from provision.image.registry import client
from provision.workflow.context import Context
from provision.workflow.image import registry as image_registry
from tests.integration.registries import (
    BIG,
    Line,
    answer,
    host,
    log_in,
    make_image,
    push,
    refuse,
)
from tests.integration.test_image import Watching
from tests.integration.waiting import eventually
from tests.unit.image.test_image_disk_base import layout
from tests.unit.image.test_image_export import exported
from tests.unit.image.test_image_layers import digest

__all__ = ["host"]

pytestmark = pytest.mark.needs("docker-registry")

SKOPEO = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    where = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=where, progress=Watching())


@pytest.fixture(scope="module")
def toy(host: str, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """lab/toy:1 in the registry."""
    toy = make_image(tmp_path_factory.mktemp("toy") / "toy")
    push(toy, f"{host}/lab/toy:1")
    return toy


def pull(context: Context, place: str, *outputs: str) -> image_registry.PulledImage:
    return image_registry.pull_image(context, place, tuple(map(image.parse_output, outputs)))


def digest_in(folder: Path) -> str:
    """The manifest digest of a layout whose every blob is what its name says."""
    for path in oci_layout.blobs(folder).iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return str(json.loads((folder / "index.json").read_text())["manifests"][0]["digest"])


@pytest.mark.parametrize("method", ["none", "zstd"])
def test_pull_returns_what_was_pushed(
    host: str, context: Context, tmp_path: Path, method: image.Compression
) -> None:
    toy = image.compress_image(
        make_image(tmp_path / "toy"), method, tmp_path / "packed", Watching()
    )
    pushed = push(toy, f"{host}/lab/{method}:1")
    pulled = pull(
        context,
        f"{host}/lab/{method}:1",
        f"oci:{tmp_path / 'out'}",
        f"docker-archive:{tmp_path / 'out.tar'}",
    )
    assert pulled.reference == pushed.reference
    assert digest_in(tmp_path / "out") == toy.manifest_digest
    assert not list(context.folders.pulled.iterdir())
    to = image.parse_output(f"docker-archive:{tmp_path / 'out.tar'}")
    name, image_id, plain = exported(to, tmp_path)
    assert (name, image_id) == (f"{host}/lab/{method}:1", toy.image_id)
    diff_ids = oci_layout.read_config(toy.layout, toy.image_id)["rootfs"]["diff_ids"]
    assert [digest(layer) for layer in plain] == diff_ids


def test_existing_layers_are_not_fetched(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    line = Line(host, lambda line, request, body: False)
    with line.open() as registry:
        for _ in range(2):
            pull(context, f"{registry}/lab/toy@{toy.manifest_digest}", f"oci:{tmp_path / 'out'}")
            fetched, line.paths[:] = [path for path in line.paths if "/blobs/" in path], []
        assert fetched == [f"/v2/lab/toy/blobs/{toy.image_id}"]  # its config, which says what it is
        blob = oci_layout.blob(tmp_path / "out", toy.layers[1].digest)
        blob.unlink()
        blob.write_bytes(b"x" * toy.layers[1].size)  # damaged: it is there by name only
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest


@pytest.mark.exhaustive
def test_damaged_documents_are_rewritten(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    """Of an output, and of a base that is kept: as long as they were, with another byte in them."""
    base = image_registry._base_layout(context.folders, f"{host}/lab/toy:1", "linux-64")
    pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    image_registry.registry_base(context, f"{host}/lab/toy:1")
    for document in (toy.image_id, toy.manifest_digest):
        image.discard_if_incomplete(base)
        assert image.is_complete(base)
        for folder in (base, tmp_path / "out"):
            blob = oci_layout.blob(folder, document)
            blob.write_bytes(blob.read_bytes()[:-1] + b" ")
        image.discard_if_incomplete(base)
        assert not image.is_complete(base)
        pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
        image_registry.registry_base(context, f"{host}/lab/toy:1")
        assert digest_in(base) == digest_in(tmp_path / "out") == toy.manifest_digest


def test_layer_without_its_bytes_is_fetched(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    """Near by, there is a file of that name and size with other bytes, and before it a folder."""
    near = [tmp_path / "folder", tmp_path / "other"]
    oci_layout.blob(near[0], toy.layers[0].digest).mkdir(parents=True)
    oci_layout.blobs(near[1]).mkdir(parents=True)
    oci_layout.blob(near[1], toy.layers[0].digest).write_bytes(bytes(toy.layers[0].size))
    layout = tmp_path / "layout"
    reference = image.parse_registry_reference(f"{host}/lab/toy:1")
    remote = image.find_remote(reference)
    oci_layout.blobs(layout).mkdir(parents=True)
    oci_layout.blob(layout, toy.layers[1].digest).write_bytes(b"short")
    image.pull_image(reference, remote, layout, context.progress, near)
    assert digest_in(layout) == toy.manifest_digest
    assert oci_layout.blob(near[1], toy.layers[0].digest).stat().st_nlink == 1


def half(request: BaseHTTPRequestHandler, content: bytes, begin: int) -> bool:
    """Answer with some of what is left, and hang up."""
    left = content[begin:]
    request.send_response(206 if begin else 200)
    request.send_header("Content-Length", str(len(left)))
    if begin:
        request.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
    request.end_headers()
    request.wfile.write(left[: 1 << 20])
    request.wfile.flush()
    request.connection.shutdown(socket.SHUT_RDWR)
    return True


def is_big(request: BaseHTTPRequestHandler, toy: Image) -> bool:
    return request.command == "GET" and request.path.endswith(toy.layers[0].digest)


def begins(request: BaseHTTPRequestHandler) -> int:
    return int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))


def test_interrupted_layer_is_resumed(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    """It breaks after each MiB, more often than a try in vain is repeated."""
    content = oci_layout.blob(toy.layout, toy.layers[0].digest).read_bytes()
    offsets: list[int] = []

    def breaking(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if not is_big(request, toy):
            return False
        offsets.append(begins(request))
        return half(request, content, offsets[-1])

    with Line(host, breaking).open() as registry:
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest
    assert offsets == [n << 20 for n in range(len(offsets))]  # no byte twice
    assert len(offsets) == BIG // (1 << 20) + 1
    meters = context.progress
    assert isinstance(meters, Watching)
    assert meters.advanced == sum(meters.meters.values())


@pytest.mark.exhaustive
def test_failed_pull_is_resumed_by_the_next(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    content = oci_layout.blob(toy.layout, toy.layers[0].digest).read_bytes()

    def once(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        return is_big(request, toy) and (
            half(request, content, 0) if not begins(request) else refuse(request, 500)
        )

    with Line(host, once).open() as registry, pytest.raises(ToolFailed, match="status 500"):
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
    offsets: list[int] = []

    def listening(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        offsets.extend([begins(request)] if is_big(request, toy) else [])
        return False

    with Line(host, listening).open() as registry:
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert offsets == [1 << 20]
    assert digest_in(tmp_path / "out") == toy.manifest_digest


def test_killed_pull_is_resumed(host: str, toy: Image, context: Context, tmp_path: Path) -> None:
    content = oci_layout.blob(toy.layout, toy.layers[0].digest).read_bytes()
    killed = threading.Event()
    offsets: list[int] = []

    def stalling(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if not is_big(request, toy):
            return False
        offsets.append(begins(request))
        if offsets[-1]:
            return False
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: 2 << 20])
        return killed.wait(30)

    where = context.folders
    env = {
        **os.environ,
        "PROVISION_DATA": str(where.data),
        "PROVISION_CACHE": str(where.cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with Line(host, stalling).open() as registry:
        command = ["image", "pull", f"{registry}/lab/toy:1", "--output", f"oci:{tmp_path / 'out'}"]
        with subprocess.Popen(
            [sys.executable, "-c", "from provision.cli.main import main; main()", *command], env=env
        ) as child:
            try:
                part = (
                    where.pulled
                    / toy.manifest_digest.removeprefix("sha256:")
                    / "parts"
                    / toy.layers[0].digest.removeprefix("sha256:")
                )
                eventually(lambda: part.exists() and part.stat().st_size > 1 << 20)
            finally:
                child.kill()
        killed.set()
        assert not (tmp_path / "out").exists()
        size = part.stat().st_size
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert offsets == [0, size]
    assert digest_in(tmp_path / "out") == toy.manifest_digest


def test_occupied_target_is_refused_before_any_request(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    line = Line(host, lambda line, request, body: False)
    with line.open() as registry, pytest.raises(InUse, match="exists and is not an image layout"):
        pull(
            context,
            f"{registry}/lab/toy:1",
            f"oci-archive:{tmp_path / 'out.tar'}",
            f"oci:{tmp_path / 'home'}",
        )
    assert (line.commands, [path.name for path in (tmp_path / "home").iterdir()]) == (
        [],
        ["thesis.tex"],
    )
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.exhaustive
def test_leftovers_of_an_undelivered_pull_are_removed_by_the_next(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    """A base is not what was left, and stays."""
    layout = context.folders.pulled / toy.manifest_digest.removeprefix("sha256:")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileExistsError):
        pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'file' / 'out'}")
    assert digest_in(layout) == toy.manifest_digest
    pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert not list(context.folders.pulled.iterdir())
    image_registry.registry_base(context, f"{host}/lab/toy:1")
    pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    (base,) = context.folders.pulled.iterdir()
    assert digest_in(base) == digest_in(tmp_path / "out") == toy.manifest_digest


@pytest.mark.exhaustive
def test_corrupt_leftovers_are_not_trusted(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    parts = context.folders.pulled / toy.manifest_digest.removeprefix("sha256:") / "parts"
    parts.mkdir(parents=True)
    (parts / toy.layers[0].digest.removeprefix("sha256:")).write_bytes(b"other" * 1000)
    (parts / toy.layers[1].digest.removeprefix("sha256:")).write_bytes(b"more than it has" * 1000)
    with pytest.raises(IntegrityError):
        pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    pull(context, f"{host}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest


def whole_only(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """A registry that knows no ranges, and breaks off the first time."""
    del request.headers["Range"]
    if "/blobs/" in request.path and line.paths.count(request.path) == 1:
        with urlopen(f"http://{line.behind}{request.path}") as answer:
            return half(request, answer.read(), 0)
    return False


def busy(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Whatever is asked for is to be had at the second try, in turns for every reason that there is."""
    status = (429, 500, 503)[len(line.commands) % 3]
    return line.paths.count(request.path) == 1 and refuse(request, status, Retry_After="0")


@pytest.mark.parametrize("trouble", [whole_only, busy])
def test_temporary_trouble_is_retried(
    host: str, toy: Image, context: Context, tmp_path: Path, trouble: Callable[..., bool]
) -> None:
    with Line(host, trouble).open() as registry:
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, ToolFailed), (404, ProvisionError), (429, TimedOut), (500, ToolFailed)],
)
@pytest.mark.parametrize("what", ["manifests", "blobs"])
def test_lasting_trouble_is_reported(
    host: str,
    toy: Image,
    context: Context,
    tmp_path: Path,
    status: int,
    error: type[ProvisionError],
    what: str,
) -> None:
    def refusing(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        return f"/{what}/" in request.path and refuse(request, status, Retry_After="0")

    with Line(host, refusing).open() as registry, pytest.raises(error):
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["flipped", "more", "other manifest"])
def test_wrong_bytes_are_refused_and_removed(
    host: str, toy: Image, context: Context, tmp_path: Path, what: str
) -> None:
    def lying(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        is_target = (
            "/manifests/" in request.path if what == "other manifest" else is_big(request, toy)
        )
        if not is_target:
            return False
        content = bytearray(
            oci_layout.blob(toy.layout, request.path.rpartition("/")[2]).read_bytes()
        )
        content[1000 if len(content) > 1000 else 100] ^= 1
        content += b"more" if what == "more" else b""
        return answer(request, bytes(content))

    with Line(host, lying).open() as registry, pytest.raises(IntegrityError):
        pull(context, f"{registry}/lab/toy@{toy.manifest_digest}", f"oci:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
    assert not list(context.folders.cache.rglob(toy.layers[0].digest.removeprefix("sha256:")))
    assert not list(context.folders.cache.rglob("index.json"))


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_full_disk_is_named_and_received_bytes_stay(
    host: str, toy: Image, context: Context, tmp_path: Path
) -> None:
    context.folders.pulled.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "none", context.folders.pulled], check=True
    )
    filler = context.folders.pulled / "filler"

    def fill(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if is_big(request, toy) and not filler.exists():
            filler.write_bytes(b"x" * (3 << 20))
        return False

    try:
        with Line(host, fill).open() as registry:
            for _ in range(2):  # the disk fills up on the way; it is full before
                with pytest.raises(NoSpace, match="the pull continues where it stopped"):
                    pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
            filler.write_bytes(b"")
            pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    finally:
        subprocess.run(["umount", context.folders.pulled], check=True)
    assert digest_in(tmp_path / "out") == toy.manifest_digest


def test_layers_may_be_redirected(host: str, toy: Image, context: Context, tmp_path: Path) -> None:
    """As hosted registries have it: a bucket, which must not learn who we are. There the big layer breaks off."""
    content = oci_layout.blob(toy.layout, toy.layers[0].digest).read_bytes()
    tokens: list[str | None] = []

    def bucket(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        tokens.append(request.headers.get("Authorization"))
        return is_big(request, toy) and half(request, content, begins(request))

    with Line(host, bucket).open() as target:

        def moved(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
            authorization = request.headers.get("Authorization")
            if authorization is None:
                return refuse(request, 401, WWW_Authenticate='Basic realm="lab"')
            return "/blobs/" in request.path and refuse(
                request, 307, Location=f"http://{target}{request.path}"
            )

        with Line(host, moved).open() as registry:
            log_in(registry, "lab", "secret")
            pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest
    assert len(tokens) == BIG // (1 << 20) + 3
    assert set(tokens) == {None}


def test_expired_token_is_renewed(
    host: str, toy: Image, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is good for two requests; the big layer also breaks off. What is in ~/.netrc is not taken in its place."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    content = oci_layout.blob(toy.layout, toy.layers[0].digest).read_bytes()
    issued: list[int] = []

    def guarded(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if request.path.startswith("/token"):
            issued.append(2)
            return answer(request, json.dumps({"token": f"number{len(issued)}"}).encode())
        if (
            not issued
            or request.headers.get("Authorization") != f"Bearer number{len(issued)}"
            or not issued[-1]
        ):
            own = f"127.0.0.1:{request.server.server_port}"  # type: ignore[attr-defined]
            return refuse(
                request,
                401,
                WWW_Authenticate=f'Bearer realm="http://{own}/token",service="lab",scope="repository:x:pull"',
            )
        issued[-1] -= 1
        del request.headers["Authorization"]
        return is_big(request, toy) and half(request, content, begins(request))

    with Line(host, guarded).open() as registry:
        pull(context, f"{registry}/lab/toy:1", f"oci:{tmp_path / 'out'}")
    assert digest_in(tmp_path / "out") == toy.manifest_digest
    assert len(issued) >= 4


@pytest.mark.needs("skopeo")
@pytest.mark.parametrize("form", ["v2s2", "oci"])
def test_images_pushed_by_other_tools_are_read(
    host: str, toy: Image, context: Context, tmp_path: Path, form: str
) -> None:
    subprocess.run(
        [*SKOPEO, "--format", form, f"oci:{toy.layout}", f"docker://{host}/lab/{form}:x"],
        check=True,
    )
    pulled = pull(context, f"{host}/lab/{form}:x", f"oci-archive:{tmp_path / 'out.tar'}")
    assert pulled.image_id == toy.image_id
    to = image.parse_output(f"oci-archive:{tmp_path / 'out.tar'}")
    assert exported(to, tmp_path)[1] == toy.image_id


@pytest.mark.needs("skopeo")
def test_own_platform_is_chosen(host: str, context: Context, tmp_path: Path) -> None:
    many = layout(tmp_path / "many", platforms=("arm64", "amd64"), nested=True)
    index = json.loads((many / "index.json").read_text())["manifests"][0]["digest"]
    subprocess.run(
        [*SKOPEO, "--all", "--preserve-digests", f"oci:{many}", f"docker://{host}/lab/many:x"],
        check=True,
    )
    pulled = pull(context, f"{host}/lab/many@{index}", f"oci:{tmp_path / 'out'}")
    assert pulled.image_id == disk_base.read_disk_base(f"oci:{many}").digest
    only = layout(tmp_path / "only", platforms=("arm64",))
    subprocess.run([*SKOPEO, f"oci:{only}", f"docker://{host}/lab/only:x"], check=True)
    with pytest.raises(ProvisionError, match="linux/arm64"):
        pull(context, f"{host}/lab/only:x", f"oci:{tmp_path / 'none'}")


@pytest.mark.needs("skopeo")
def test_base_is_pulled_once(host: str, context: Context, tmp_path: Path) -> None:
    base = disk_base.read_disk_base(f"oci:{layout(tmp_path / 'base')}")
    lab = image.parse_registry_reference(f"{host}/lab/base:12")
    subprocess.run([*SKOPEO, f"oci:{tmp_path / 'base'}", f"docker://{lab}"], check=True)
    line = Line(host, lambda line, request, body: False)
    with line.open() as registry:
        result = image_registry.registry_base(context, f"{registry}/lab/base:12")
        assert (result.reference, result.digest, result.diff_ids) == (
            f"{registry}/lab/base:12",
            base.digest,
            base.diff_ids,
        )
        (tmp_path / "plain").mkdir()
        assert (
            len(
                layers.write_base(
                    result.archive(), result.diff_ids, tmp_path / "plain", lambda _: None
                )
            )
            == 2
        )
        pinned = f"{registry}/lab/base@{image.find_remote(lab).digest}"
        image_registry.registry_base(context, pinned)
        line.paths.clear()
        assert image_registry.registry_base(context, pinned).digest == base.digest
        assert line.paths == []
        blob = layer_cache.read(next(context.folders.pulled.glob("*/index.json")).parent)[0].path
        blob.write_bytes(b"damaged")
        assert image_registry.registry_base(context, pinned).digest == base.digest
        tagged = image_registry.registry_base(context, f"{registry}/lab/base:12")
        assert tagged.digest == base.digest
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        line.trouble = lambda line, request, body: refuse(request, 500, Retry_After="0")
        with pytest.raises(ToolFailed):
            image_registry.registry_base(context, f"{registry}/lab/base:13")
    # The registry is gone.
    assert image_registry.registry_base(context, f"{registry}/lab/base:12").digest == base.digest
    with pytest.raises(Unreachable, match="could not be pulled"):
        image_registry.registry_base(context, f"{registry}/lab/base:13")


@pytest.fixture
def engine() -> Any:
    return image.require_engine()


@pytest.mark.docker
@pytest.mark.parametrize("method", ["none", "zstd"])
def test_engine_gets_the_image_under_its_name(
    engine: Any, host: str, context: Context, tmp_path: Path, method: image.Compression
) -> None:
    name = f"{host}/lab/engine-{uuid.uuid4().hex[:8]}"
    toy = image.compress_image(
        make_image(tmp_path / "toy", small=uuid.uuid4().bytes),
        method,
        tmp_path / "packed",
        Watching(),
    )
    push(toy, f"{name}:1")
    try:
        for _ in range(2):
            pull(context, f"{name}:1")
        assert engine.images.get(f"{name}:1").id == toy.image_id
        assert [tag for tag in engine.images.get(toy.image_id).tags if name in tag] == [f"{name}:1"]
    finally:
        engine.images.remove(toy.image_id, force=True)


def test_pull_without_an_engine_requires_an_output(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(ToolMissing, match="--output"):
        pull(context, "127.0.0.1:1/lab/toy")
