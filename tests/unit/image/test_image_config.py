"""What an image says about itself, the bases that it may have, and its Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import render
from provision.adapters.docker import PING_TIMEOUT_S, connect_engine, engine_errors, require_engine
from provision.catalog.data_files import load
from provision.core import container
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.spec_fields import Spec
from provision.core.types import Layer, Resolution
from provision.image import base, config, container_smoke, own_files
from provision.image.base import chosen_base
from provision.image.config import source_date_epoch
from provision.image.oci_layout import DIGEST
from tests.unit.image import test_image_build as build

LOCK = replace(build.LOCK, packages=())


def resolution(cuda: str | None = "12.1", base: str | None = None) -> Resolution:
    return replace(
        build.RESOLUTION,
        spec=Spec(name="toy", torch="2.3", cuda=cuda, base=base),
        local_version="2.3.1+cu121",
        cuda=cuda,
        nccl="2.20.5" if cuda else None,
        driver_floor="525.60.13" if cuda else None,
    )


def test_variables_override_those_of_the_base() -> None:
    inherited = [
        "PATH=/usr/local/nvidia/bin:/usr/bin",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64",
        "LANG=C.UTF-8",
        "PYTHONPATH=/x",
    ]
    variables = config.environment(resolution(), LOCK, inherited)
    assert variables["PATH"] == "/opt/env/bin:/usr/local/nvidia/bin:/usr/bin"
    assert variables["LANG"] == "C.UTF-8"
    assert variables["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.1 driver>=525.60.13"
    assert not {"LD_LIBRARY_PATH", "PYTHONPATH"} & variables.keys()


def test_a_cpu_image_asks_for_no_gpu() -> None:
    assert not any(
        key.startswith("NVIDIA") for key in config.environment(resolution(cuda=None), LOCK)
    )


def test_unknown_values_have_no_label() -> None:
    labels = config.labels(resolution(), LOCK, f"debian:12@sha256:{'0' * 64}", "sha256:1")
    assert labels["org.opencontainers.image.base.digest"] == f"sha256:{'0' * 64}"
    assert (labels["org.provision.lock"], labels["org.provision.torch"]) == (
        LOCK.sha256,
        "2.3.1+cu121",
    )
    local = config.labels(resolution(cuda=None), LOCK, "mine:latest", None)
    assert (
        not {"org.opencontainers.image.base.digest", "org.provision.nccl", "org.provision.base.id"}
        & local.keys()
    )
    assert local["org.provision.cuda"] == "none"
    assert (
        labels["org.opencontainers.image.description"]
        == "PyTorch 2.3.1+cu121, CUDA 12.1, Python 3.11"
    )
    assert "org.opencontainers.image.created" not in labels
    assert (
        config.labels(resolution(), LOCK, "mine", None, 0)["org.opencontainers.image.created"]
        == "1970-01-01T00:00:00Z"
    )
    reaching = replace(resolution(), architectures=("sm_80", "sm_90"))
    assert config.labels(reaching, LOCK, "mine", None)["org.provision.gpus"] == "sm_80 sm_90"


def test_variables_that_enroots_hooks_read() -> None:
    plain = resolution()
    wide = replace(plain, spec=replace(plain.spec, infiniband=True))
    assert config.environment(wide, LOCK)["MELLANOX_VISIBLE_DEVICES"] == "all"
    variables = config.environment(plain, LOCK)
    assert variables["PYTORCH_VERSION"] == "2.3.1+cu121"
    assert "MELLANOX_VISIBLE_DEVICES" not in variables


def test_image_config_is_complete() -> None:
    layers = [
        Layer(group="base", digest="sha256:a", size=1),
        Layer(group="cuda", digest="sha256:b", size=2),
    ]
    document = config.image_config({"A": "b"}, {"x": "y"}, layers, 0)
    assert document["config"] is not None
    assert document["rootfs"] == {"diff_ids": ["sha256:a", "sha256:b"], "type": "layers"}
    assert len(document["history"]) == 2
    assert (document["created"], document["config"]["User"]) == (
        "1970-01-01T00:00:00Z",
        "1000:1000",
    )
    assert "Entrypoint" not in document["config"]


@pytest.mark.parametrize(
    ("text", "epoch"), [(None, 315532800), ("", 315532800), ("0", 0), ("1700000000", 1700000000)]
)
def test_source_date_epoch(text: str | None, epoch: int) -> None:
    assert source_date_epoch({} if text is None else {"SOURCE_DATE_EPOCH": text}) == epoch


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "9" * 12])
def test_invalid_source_date_epochs(text: str) -> None:
    with pytest.raises(InvalidSpec, match="SOURCE_DATE_EPOCH"):
        source_date_epoch({"SOURCE_DATE_EPOCH": text})


def test_repository_names() -> None:
    assert config.repository("torch2.3-cuda12.1-py311") == "provision/torch2.3-cuda12.1-py311"
    for name in ("Upper", "a..b", "-a", "a-", "a b", "a/b", ""):
        with pytest.raises(InvalidSpec, match="cannot be named"):
            config.repository(name)


def test_bases_we_ship_are_pinned_and_sourced() -> None:
    rows = load("base_images.json")["images"]
    assert {row["use"] for row in rows} == {"base", "builder", "frontend"}
    for row in rows:
        assert DIGEST.fullmatch(row["digest"]) and "@" not in row["reference"] and row["source"]
    assert base.pinned("base").startswith("docker.io/library/debian:bookworm-slim@sha256:")


@pytest.mark.parametrize(
    "reference",
    [
        "debian",
        "debian:12",
        "localhost:5000/a/b_c:T.1-x",
        f"debian:12@sha256:{'a' * 64}",
        f"sha256:{'a' * 64}",
        "ghcr.io/A-b/c"[:7],
    ],
)
def test_valid_references(reference: str) -> None:
    assert chosen_base(reference) == reference


@pytest.mark.parametrize(
    "reference", ["", "Debian", "a b", "a:b:c", "a@sha256:1", "../x", "a:$(id)", "-v", "a//b"]
)
def test_invalid_references(reference: str) -> None:
    with pytest.raises(InvalidSpec, match="not an image reference"):
        chosen_base(reference)


def test_a_missing_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///absent/docker.sock")
    client, reason = connect_engine()
    assert (client, reason) == (None, "unix:///absent/docker.sock: No such file or directory")
    with pytest.raises(ToolMissing, match=r"No Docker engine answers.*--no-image"):
        require_engine()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the SDK leaves its socket open
def test_an_engine_that_accepts_but_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from requests.adapters import HTTPAdapter

    timeouts = set()
    send = HTTPAdapter.send

    def record_timeout(adapter: HTTPAdapter, *arguments: Any, **options: Any) -> Any:
        timeouts.add(options["timeout"])
        return send(adapter, *arguments, **options)

    monkeypatch.setattr(HTTPAdapter, "send", record_timeout)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        assert connect_engine()[0] is None
    assert timeouts == {PING_TIMEOUT_S}


def test_a_broken_engine_connection_is_reported() -> None:
    import requests

    from provision.core.errors import NoSpace, Unreachable

    with (
        pytest.raises(Unreachable, match=r"broke: could not load provision/x:1\."),
        engine_errors("load provision/x:1"),
    ):
        raise requests.ConnectionError("Connection reset by peer")
    from docker.errors import ImageLoadError

    with (
        pytest.raises(NoSpace, match="engine's disk is full"),
        engine_errors("load provision/x:1"),
    ):
        raise ImageLoadError("write /var/lib/docker/tmp/x: no space left on device")


def test_reports_are_unpacked_below_their_folder_only(tmp_path: Path) -> None:
    import io
    import tarfile

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as members:
        for name in ("r/report.json", "r/logs/rank0.log", "r/../../evil", "/r/abs"):
            member = tarfile.TarInfo(name)
            member.size = 2
            members.addfile(member, io.BytesIO(b"{}"))
        link = tarfile.TarInfo("r/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        members.addfile(link)
    out = tmp_path / "a" / "out"
    container_smoke.unpack_report([archive.getvalue()], out)
    result = sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()
    )
    assert result == ["a/out/logs/rank0.log", "a/out/r/abs", "a/out/report.json"]


def rendered(values: dict[str, object]) -> str:
    return render.render_dockerfile("toy", values)[render.DOCKERFILE]


def tool(name: str) -> str:
    executable = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not executable:
        pytest.skip(f"no {name} on this machine")
    return executable


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("cuda", ["12.1", None])
def test_dockerfile_says_what_the_image_says_and_is_clean(
    portable: bool, cuda: str | None, tmp_path: Path
) -> None:
    lock = replace(LOCK, portable=portable)
    text = rendered(config.dockerfile_context(resolution(cuda), lock))
    for key, value in config.environment(resolution(cuda), lock).items():
        own = (
            shlex.quote(value)
            if key != "PATH"
            else f'"{container.PREFIX}/bin:${{PATH:-{config.PATH}}}"'
        )  # the base's comes after it
        assert f"    {key}={own}" in text
    assert f"CMD {json.dumps([container.PYTHON])}\n" in text
    assert ("packaged on the machine that made the lock" in text) is not portable
    assert "{{" not in text and text.endswith("\n")
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    checked = subprocess.run(
        [tool("hadolint"), "--no-color", path], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "")
    # BuildKit reads this in the first line only.
    assert text.splitlines()[0] == f"# syntax={base.pinned('frontend')}"
    assert render.file_state(path) == "ours"
    path.write_text(text.replace("# syntax=", "# syntax=registry.example/", 1))
    assert render.file_state(path) == "edited"


def test_dockerfile_has_a_layer_for_each_group_of_the_lock() -> None:
    package = build.LOCK.packages[0]
    wheels = [replace(package, name=name, manager="pip") for name in ("nvidia-nccl-cu12", "einops")]
    packages = (replace(package, name="python", manager="conda"), *wheels)
    context = config.dockerfile_context(resolution(), replace(LOCK, packages=packages))
    assert context["copied"] == ["cuda", "python", "large", "rest"]
    assert [group["name"] for group in context["groups"]] == ["cuda", "large", "rest"]
    copied = re.findall(r"^COPY --from=environment /layers/(\w+)", rendered(context), re.MULTILINE)
    assert copied == [*context["copied"], "provision"]


def test_dockerfile_links_the_libraries_for_older_drivers() -> None:
    compat = replace(build.LOCK.packages[0], manager="conda", name="cuda-compat")
    link = "ln -s /opt/env/cuda-compat /layers/provision/usr/local/cuda/compat"
    lock = replace(LOCK, packages=(compat,))
    assert link in rendered(config.dockerfile_context(resolution(), lock))
    assert link not in rendered(config.dockerfile_context(resolution(), LOCK))


def test_dockerfile_takes_the_base_of_the_spec() -> None:
    text = rendered(config.dockerfile_context(resolution(base="mine:1"), LOCK))
    assert "\nARG BASE=mine:1\n" in text and "\nFROM ${BASE}\n" in text
    assert 'org.opencontainers.image.base.name="${BASE}"' in text


def test_entry_script_is_clean(tmp_path: Path) -> None:
    script = tmp_path / "provision-smoke"
    script.write_text(own_files.COMMAND_SCRIPT)
    checked = subprocess.run(
        [tool("shellcheck"), script], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "")
