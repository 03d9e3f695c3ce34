"""The rendered Dockerfile, built by the builders that are here, next to the image that provision makes of the same lock.

Its first stage needs micromamba's image and a conda channel, which cannot be had here. An image in its place, given as a build
argument, has conda packages linked for /opt/env, and the environment's own pip installs wheels, as conda-lock has it done. The
Dockerfile is built as it was rendered, but for `# syntax`, whose image Docker 20.10 would pull.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from provision import render
from provision.adapters import conda
from provision.adapters.docker import require_engine
from provision.core.container import PREFIX
from provision.core.types import Image, Lock, Prefix
from provision.environment import runtime_package
from provision.image import config, oci_layout
from provision.image.config import dockerfile_context
from provision.image.docker import find_engine_base
from tests.conftest import ROOT
from tests.integration.short_folders import short_folder
from tests.integration.test_image import EnvironmentParts, Watching, build, resolution
from tests.programs import write_program

pytestmark = pytest.mark.docker

NAME = "provision-test-dockerfile"
Files = dict[str, tuple[str, int, str]]  # path -> kind, permissions, and hash or target
# What may differ, and why.
DIFFERENT = {
    r"opt/env/conda-meta/.*": "each installer's own record of what it did",
    r"opt/env/lib/python[\d.]+/site-packages/[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)": "the same, of wheels",
    r"opt/env/lib/python[\d.]+/site-packages/provision_runtime-[^/]+\.dist-info/.*": "docker build copies the package alone",
    r"opt/env/bin/greet": "pip and uv write the script of an entry point in words of their own",
    r"opt/env/CACHEDIR\.TAG": "linkers mark what can be made again",
}


@pytest.fixture(scope="module")
def environment_parts(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentParts:
    return EnvironmentParts(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def lock(environment_parts: EnvironmentParts) -> Lock:
    return environment_parts.lock()


@pytest.fixture(scope="module")
def toy_image(
    environment_parts: EnvironmentParts,
    lock: Lock,
    docker_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Image:
    base = find_engine_base(require_engine(), docker_base, Watching())
    folder = tmp_path_factory.mktemp("built")
    prefix: Prefix = environment_parts.prefix(folder / "prefix", lock)
    return build(environment_parts, lock, prefix, base, runtime_package.FOLDER, folder / "layout")


MIRROR = "https://conda.lab.example/t/SECRET-TOKEN/mirror"
# In place of micromamba, whose image and channels this machine does not reach. It makes a `conda-lock` that installs what lies in
# the builder's image, if the lock names the channels of the mirror, and records their addresses as micromamba does.
MICROMAMBA = f"""\
#!/bin/sh -e
[ "$CONDA_PKGS_DIRS" = /cache/conda ]
[ -d /cache ]
case "$*" in
"create --yes --prefix /opt/conda-lock --channel {MIRROR}/conda-forge conda-lock="*) ;;
*) echo "micromamba $*"; exit 1 ;;
esac
mkdir -p /opt/conda-lock/bin /opt/conda-lock/conda-meta
echo "{MIRROR}/conda-forge" > /opt/conda-lock/conda-meta/history
cat > /opt/conda-lock/bin/conda-lock <<'EOF'
#!/bin/sh -e
lock=/tmp/addressed-conda-lock.yml
[ "$*" = "install --micromamba --conda /bin/micromamba --copy --prefix {PREFIX} $lock" ]
if grep "url: http" $lock | grep -qv "url: {MIRROR}/"; then exit 1; fi
[ "$(grep -c "url: {MIRROR}/pytorch/linux-64/pytorch-2" $lock)" = 1 ]
cp -a /linked {PREFIX}
sed -i 's#"url": *"[^"]*"#"url": "{MIRROR}/linux-64/x.conda"#' {PREFIX}/conda-meta/*.json
{PREFIX}/bin/python -m pip install --no-deps --no-index --disable-pip-version-check /wheels/*.whl
EOF
chmod 755 /opt/conda-lock/bin/conda-lock
"""
SYNTAX = re.compile(r"\A# syntax=docker\.io/docker/dockerfile:\S+@sha256:[0-9a-f]{64}\n")


@pytest.fixture(scope="module")
def machine(
    environment_parts: EnvironmentParts,
    docker_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The context of an image in place of micromamba's."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "wheels").mkdir()
    for wheel in environment_parts.wheels:
        shutil.copy(wheel, folder / "wheels")
    conda.install_packages(
        environment_parts.conda,
        folder / "linked",
        final=Path(PREFIX),
        cache=environment_parts.cache,
        progress=Watching(),
    )
    write_program(folder / "micromamba", MICROMAMBA)
    lines = ["COPY micromamba /bin/micromamba", "COPY linked /linked", "COPY wheels /wheels"]
    (folder / "Dockerfile").write_text("\n".join([f"FROM {docker_base}", *lines]))
    return folder


@pytest.fixture(scope="module")
def context(lock: Lock, docker_base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/image.md pipes to a builder."""
    folder = tmp_path_factory.mktemp("context")
    shutil.copytree(
        runtime_package.FOLDER,
        folder / "provision_runtime",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    address = "https://channels.lab.example/pytorch/linux-64/pytorch-2.tar.bz2"
    (folder / "conda-lock.yml").write_text(f"  url: {address}\n")
    (folder / "Dockerfile").write_text(rendered(lock, docker_base))
    (folder.parent / "alias").write_text(MIRROR)
    return folder


def rendered(lock: Lock, base: str) -> str:
    """The Dockerfile without its first line, for builders that would pull what it names."""
    plain = resolution()
    values = dockerfile_context(replace(plain, spec=replace(plain.spec, base=base)), lock)
    text = render.render_dockerfile("toy", values)[render.DOCKERFILE]
    assert SYNTAX.search(text)
    return SYNTAX.sub("", text)


def files(archive: tarfile.TarFile) -> Files:
    """Every file and link of ours."""
    result = {}
    for member in archive:
        name = member.name.lstrip("./")
        if not name.startswith(("opt/", "usr/local/bin/provision", "workspace")) or (
            member.isdir() and name != "workspace"
        ):
            continue
        file = archive.extractfile(member) if member.isreg() or member.islnk() else None
        content = hashlib.sha256(file.read()).hexdigest() if file else member.linkname
        result[name] = (
            "link" if member.issym() else "folder" if member.isdir() else "file",
            member.mode & 0o7777,
            content,
        )
    return result


@pytest.fixture(scope="module")
def own_files(toy_image: Image) -> Files:
    result = {}
    for layer in toy_image.layers[1:]:
        with tarfile.open(oci_layout.blob(toy_image.layout, layer.digest)) as archive:
            result.update(files(archive))
    return result


def without_our_byte_code(own_files: Files, dockerfile_files: Files) -> Files:
    """Images from the Dockerfile hold no byte code of ours (docs/image.md)."""
    result = {}
    for name, entry in own_files.items():
        if not name.endswith(".pyc") or name in dockerfile_files:
            result[name] = entry
    return result


def compare(dockerfile_files: Files, all_own_files: Files) -> None:
    own_files = without_our_byte_code(all_own_files, dockerfile_files)
    other = {
        name
        for name in dockerfile_files.keys() | own_files.keys()
        if dockerfile_files.get(name) != own_files.get(name)
    }
    unjustified = {
        name: (dockerfile_files.get(name), own_files.get(name))
        for name in other
        if not any(re.fullmatch(rule, name) for rule in DIFFERENT)
    }
    assert not unjustified
    assert len(other) < len(own_files) / 50  # most is the same
    assert not [rule for rule in DIFFERENT if not any(re.fullmatch(rule, name) for name in other)]


@pytest.fixture(scope="module")
def image_settings(toy_image: Image) -> dict[str, Any]:
    return settings(
        json.loads(oci_layout.blob(toy_image.layout, toy_image.image_id).read_bytes())["config"]
    )


@pytest.mark.exhaustive
def test_docker_build_gives_the_same_environment(
    machine: Path, context: Path, own_files: Files, image_settings: dict[str, Any]
) -> None:
    """The mirror's address with its token is a secret: no file and no step of the image has it."""
    builder, name = f"{NAME}-micromamba:secret", f"{NAME}:buildkit"
    with contextlib.closing(require_engine()) as client:
        try:
            docker_build(builder, str(machine))
            secret = f"--secret=id=channel_alias,src={context.parent / 'alias'}"
            docker_build(name, f"--build-arg=BUILDER={builder}", secret, str(context))
            container = client.containers.create(name)
            content = b"".join(container.export())
            container.remove()
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                compare(files(archive), own_files)
            built = client.images.get(name)
            assert settings(built.attrs["Config"]) == image_settings
            assert b"SECRET-TOKEN" not in content
            assert "SECRET-TOKEN" not in json.dumps([built.attrs, built.history()])
            copied = [
                row["CreatedBy"].split()[1]
                for row in built.history()
                if row["CreatedBy"].startswith("COPY ")
            ]
            groups = ("cuda", "python", "large", "rest", "provision")
            assert copied[::-1] == [f"/layers/{group}" for group in groups]
        finally:
            remove_images(client, name, builder)


@pytest.mark.exhaustive
@pytest.mark.needs("git")
def test_docker_build_in_the_repository(machine: Path, docker_base: str, tmp_path: Path) -> None:
    """The line for engines without the frontend: the root's own Dockerfile, with images and channels replaced by arguments."""
    builder, name = f"{NAME}-micromamba:argument", f"{NAME}-root:buildkit"
    arguments = {"BUILDER": builder, "BASE": docker_base, "CHANNEL_ALIAS": MIRROR}
    pairs = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    (tmp_path / "Dockerfile").write_text(SYNTAX.sub("", (ROOT / "Dockerfile").read_text()))
    with contextlib.closing(require_engine()) as client:
        try:
            docker_build(builder, str(machine))
            docker_build(name, *pairs, f"--file={tmp_path / 'Dockerfile'}", str(ROOT))
            config_of = client.images.get(name).attrs["Config"]
            assert config_of["Labels"]["org.opencontainers.image.base.name"] == docker_base
            container = client.containers.create(name)
            stream = io.BytesIO(b"".join(container.export()))
            container.remove()
            with tarfile.open(fileobj=stream) as archive:
                paths = {member.name for member in archive if member.isreg()}
            runtime = "opt/env/lib/python3.11/site-packages/provision_runtime/"
            installed = {path.removeprefix(runtime) for path in paths if path.startswith(runtime)}
            tracked = subprocess.run(
                ["git", "ls-files", "provision_runtime"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            names = {line.removeprefix("provision_runtime/") for line in tracked.stdout.split()}
            hook = "hang/provision_runtime.pth"  # at the top, where Python reads it
            assert names and installed == names - {hook}
            assert runtime.replace("provision_runtime/", "provision_runtime.pth") in paths
            assert "usr/local/bin/provision-smoke" in paths
            greeting = client.containers.run(name, ["greet"], remove=True)
            assert greeting.split() == [b"hello"]
        finally:
            remove_images(client, name, builder)


def docker_build(tag: str, *options: str) -> None:
    """Build with BuildKit."""
    docker = with_buildkit()
    if docker is None:
        pytest.skip("no docker command with BuildKit on this machine")
    result = subprocess.run(
        [docker, "build", "--tag", tag, *options],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def remove_images(client: Any, *names: str) -> None:
    for name in names:
        with contextlib.suppress(ImageNotFound):
            client.images.remove(name)


FOREIGN = [
    "ENV LD_LIBRARY_PATH=/foreign/lib PYTHONPATH=/foreign LAB=lab",
    "ENV PATH=/foreign/bin:/usr/bin:/bin",
    'ENTRYPOINT ["/bin/false"]',
    "USER 1234",
]


@pytest.mark.exhaustive
def test_base_settings_do_not_leave_the_environment(
    lock: Lock, docker_base: str, image_settings: dict[str, Any], tmp_path: Path
) -> None:
    """CUDA's bases have variables for the loader and an entry point. Here its first stage makes empty folders, for speed."""
    base, name = f"{NAME}-base:foreign", f"{NAME}-on-foreign:buildkit"
    _, _, second = rendered(lock, base).partition("\nFROM ${BASE}\n")
    folders = " ".join(re.findall(r"/layers/\w+", second))
    first = f"ARG BASE={base}\nFROM {base} AS environment\nUSER 0\nRUN mkdir -p {folders}\n"
    (tmp_path / "Dockerfile").write_text(f"{first}\nFROM ${{BASE}}\n{second}")
    with contextlib.closing(require_engine()) as client:
        container = client.containers.create(docker_base, ["true"])
        container.commit(*base.split(":"), changes=FOREIGN)
        container.remove()
        try:
            inherited = client.images.get(base).attrs["Config"]["Env"]
            docker_build(name, str(tmp_path))
            environment_parts = settings(client.images.get(name).attrs["Config"])
            expected = config.environment(resolution(), lock, inherited)
            assert environment_parts["Env"] == sorted(
                f"{key}={value}" for key, value in expected.items()
            )
            assert expected["PATH"] == f"{PREFIX}/bin:/foreign/bin:/usr/bin:/bin"
            assert [environment_parts[key] for key in ("Entrypoint", "Cmd", "User")] == [
                image_settings[key] for key in ("Entrypoint", "Cmd", "User")
            ]
            assert (
                client.containers.run(
                    name, ["sh", "-c", "echo [$LD_LIBRARY_PATH$PYTHONPATH]"], remove=True
                ).strip()
                == b"[]"
            )
        finally:
            remove_images(client, name, base)


@pytest.mark.needs("buildah", "skopeo")
@pytest.mark.mounts
@pytest.mark.root
@pytest.mark.exhaustive
def test_buildah_build_gives_the_same_environment(
    machine: Path,
    context: Path,
    docker_base: str,
    own_files: Files,
    image_settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    with storage() as (place, flags):
        with (
            contextlib.closing(require_engine()) as client,
            (tmp_path / "base.tar").open("wb") as file,
        ):
            file.writelines(client.images.get(docker_base).save())
        copy = ["skopeo", "copy", "--quiet", "--insecure-policy"]
        subprocess.run(
            [
                *copy,
                f"docker-archive:{tmp_path / 'base.tar'}",
                f"containers-storage:{place}localhost/{docker_base}",
            ],
            check=True,
        )
        build_image = ["buildah", *flags, "bud", "--isolation", "chroot", "--format", "docker"]
        secret = f"--secret=id=channel_alias,src={context.parent / 'alias'}"
        for tag, options, folder in (
            (f"{NAME}-micromamba", [], machine),
            (NAME, [f"--build-arg=BUILDER=localhost/{NAME}-micromamba", secret], context),
        ):
            command = [
                *build_image,
                "--timestamp",
                "315532800",
                "--tag",
                tag,
                *options,
                str(folder),
            ]
            result = subprocess.run(command, capture_output=True, check=False)
            assert result.returncode == 0, result.stdout + result.stderr
        out = tmp_path / "out"
        subprocess.run(
            [
                *copy,
                "--dest-decompress",
                f"containers-storage:{place}localhost/{NAME}:latest",
                f"dir:{out}",
            ],
            check=True,
        )
    manifest = json.loads((out / "manifest.json").read_text())
    outcome: Files = {}
    for layer in manifest["layers"][1:]:
        with tarfile.open(out / layer["digest"].removeprefix("sha256:")) as archive:
            outcome.update(files(archive))
    compare(outcome, own_files)
    assert (
        settings(
            json.loads((out / manifest["config"]["digest"].removeprefix("sha256:")).read_text())[
                "config"
            ]
        )
        == image_settings
    )


@contextlib.contextmanager
def storage() -> Iterator[tuple[str, list[str]]]:
    """A place of its own for images of buildah and podman, as skopeo names it and as their options. podman wants a short path,
    of at most 50 letters."""
    with short_folder("images") as folder:
        root, running = f"{folder}/storage", f"{folder}/running"
        try:
            yield (
                f"[overlay@{root}+{running}]",
                ["--root", root, "--runroot", running, "--storage-driver", "overlay"],
            )
        finally:
            subprocess.run(
                ["umount", f"{root}/overlay"], check=False, capture_output=True
            )  # they leave it mounted onto itself


def with_buildkit() -> str | None:
    """A docker command that has BuildKit: up to 22 it lies inside, later ones need a plugin."""
    executable = (shutil.which("docker", path=folder) for folder in os.get_exec_path())
    return next((command for command in executable if command and has_buildkit(command)), None)


def has_buildkit(docker: str) -> bool:
    env = {**os.environ, "DOCKER_BUILDKIT": "1"}
    result = subprocess.run(
        [docker, "build", "--help"], env=env, capture_output=True, text=True, check=False
    )
    return result.returncode == 0 and "--secret" in result.stdout


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """What an image says of itself. The Dockerfile's knows neither its base's id nor when it will be built."""
    unknown = ("org.provision.base.id", "org.opencontainers.image.created", "io.buildah.version")
    relevant = {key: config.get(key) or None for key in ("Cmd", "User", "WorkingDir", "Entrypoint")}
    labels = {key: value for key, value in config["Labels"].items() if key not in unknown}
    return {
        **relevant,
        "Labels": labels,
        "Env": sorted(pair for pair in config["Env"] if not pair.endswith("=")),
    }


@pytest.mark.exhaustive
@pytest.mark.needs("podman", "buildah")
@pytest.mark.mounts
@pytest.mark.root
def test_podman_and_buildah_accept_the_layout(toy_image: Image) -> None:
    with storage() as (_, flags):
        # Both make the path the image's name, so it must be one: not every folder above is (".nox" is not).
        place, source = toy_image.layout.parent, f"oci:{toy_image.layout.name}"
        result = subprocess.run(
            ["podman", *flags, "pull", "--quiet", source],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        pulled = result.stdout.strip()
        assert f"sha256:{pulled}" == toy_image.image_id, result.stderr
        limits = [
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
        ]  # podman's own may be above what this machine allows
        run = ["podman", *flags, "run", "--rm", "--network", "none", *limits, pulled]
        result = subprocess.run(
            [*run, "sh", "-c", "greet; id -u"], capture_output=True, text=True, check=False
        )
        assert result.stdout.split() == ["hello", "1000"], result.stderr
        if shutil.which("buildah"):
            take = ["buildah", *flags, "from", "--name", "taken", source]
            result = subprocess.run(take, cwd=place, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            completed = subprocess.run(
                ["buildah", *flags, "inspect", "taken"], check=True, capture_output=True, text=True
            ).stdout
            assert json.loads(completed)["FromImageID"] == pulled
