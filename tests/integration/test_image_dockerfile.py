"""The rendered Dockerfile, built by the builders that are here, next to the image that provision makes of the same lock.

Its first stage needs micromamba's image and a conda channel. Where neither can be had, that stage's solver and linker are replaced:
conda packages come linked for /opt/env, wheels are installed by the environment's own pip, as conda-lock has it done. All else
is built as it was rendered.
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

from provision import image, render
from provision.core.container import PREFIX
from provision.core.types import Image, Lock, Prefix
from provision.environment import runtime_package
from provision.image import config, oci_layout
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
    base = image.find_engine_base(image.require_engine(), docker_base, Watching())
    folder = tmp_path_factory.mktemp("built")
    prefix: Prefix = environment_parts.prefix(folder / "prefix", lock)
    return build(environment_parts, lock, prefix, base, runtime_package.FOLDER, folder / "layout")


@pytest.fixture(scope="module")
def context(
    environment_parts: EnvironmentParts,
    lock: Lock,
    docker_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """What docs/image.md pipes to a builder, and the packages that the first stage would fetch."""
    folder = tmp_path_factory.mktemp("context")
    shutil.copytree(
        runtime_package.FOLDER,
        folder / "provision_runtime",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (folder / "wheels").mkdir()
    for wheel in environment_parts.wheels:
        shutil.copy(wheel, folder / "wheels")
    (folder / "linked").mkdir()
    environment_parts.link(PREFIX)(folder / "linked")
    text = rendered(lock, docker_base)
    (folder / "Dockerfile").write_text(text)
    return folder


def rendered(lock: Lock, base: str) -> str:
    """The Dockerfile with another way of installing in its first stage, from the base that can be had."""
    plain = resolution()
    values = image.dockerfile_context(replace(plain, spec=replace(plain.spec, base=base)), lock)
    text = render.render_dockerfile("toy", values)[render.DOCKERFILE]
    first, second = text.split("\nFROM ${BASE}\n")
    installed = re.search(
        r"^RUN if [^\n]*\n[^\n]*\n[^\n]*\n[^\n]*conda-lock install .*?&& (find .*)",
        first,
        flags=re.MULTILINE | re.DOTALL,
    )
    assert installed, "the first stage ends with the removal of byte code"
    env = PREFIX
    pip = f"{env}/bin/python -m pip install --no-deps --no-index --disable-pip-version-check /wheels/*.whl"
    lines = [
        f"ARG BASE={base}",
        f"FROM {base} AS environment",
        f"COPY linked {env}",
        "COPY wheels /wheels",
        f"RUN {pip} && {installed[1]}",
    ]
    return "\n".join(lines) + f"\n\nFROM ${{BASE}}\n{second}"


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
@pytest.mark.parametrize("builder", ["classic", "buildkit"])
def test_docker_build_gives_the_same_environment(
    context: Path, own_files: Files, image_settings: dict[str, Any], builder: str
) -> None:
    docker, env = docker_with(builder)
    name = f"{NAME}:{builder}"
    result = subprocess.run(
        [docker, "build", "--tag", name, "-"],
        env=env,
        input=packed(context),
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with contextlib.closing(image.require_engine()) as client:
        container = client.containers.create(name)
        try:
            stream = io.BytesIO(b"".join(container.export()))
            with tarfile.open(fileobj=stream) as archive:
                compare(files(archive), own_files)
            assert settings(client.images.get(name).attrs["Config"]) == image_settings
        finally:
            container.remove()
            client.images.remove(name)
            forget_steps(client, result.stdout.decode())


# In place of micromamba, whose image and channels this machine does not reach. It makes a `conda-lock`
# that installs what lies in the builder's image, if the lock names the channels of the build argument.
MICROMAMBA = f"""\
#!/bin/sh -e
case "$*" in
"create --yes --prefix /opt/conda-lock --channel $MIRROR/conda-forge conda-lock="*) ;;
"clean --all --yes") exit ;;
*) echo "micromamba $*"; exit 1 ;;
esac
mkdir -p /opt/conda-lock/bin
cat > /opt/conda-lock/bin/conda-lock <<'EOF'
#!/bin/sh -e
[ "$*" = "install --micromamba --conda /bin/micromamba --copy --prefix {PREFIX} /tmp/conda-lock.yml" ]
! grep "url: " /tmp/conda-lock.yml | grep -qv "url: $MIRROR/"
[ "$(grep -c "url: $MIRROR/pytorch/linux-64/pytorch-2" /tmp/conda-lock.yml)" = 1 ]
cp -a /linked {PREFIX}
{PREFIX}/bin/python -m pip install --no-deps --no-index --disable-pip-version-check /wheels/*.whl
EOF
chmod 755 /opt/conda-lock/bin/conda-lock
"""
MIRROR = "https://conda.lab.example/mirror"


@pytest.mark.exhaustive
@pytest.mark.needs("git")
@pytest.mark.parametrize("builder", ["classic", "buildkit"])
def test_docker_build_in_the_repository(context: Path, docker_base: str, builder: str) -> None:
    """`docker build .` of the root's own Dockerfile, with images and channels replaced by arguments."""
    docker, env = docker_with(builder)
    machine, name = f"{NAME}-micromamba:{builder}", f"{NAME}-root:{builder}"
    write_program(context / "micromamba", MICROMAMBA)
    lines = [
        f"FROM {docker_base}",
        f"ENV MIRROR={MIRROR}",
        "COPY micromamba /bin/micromamba",
        "COPY linked /linked",
        "COPY wheels /wheels",
    ]
    (context / "machine").write_text("\n".join(lines))

    def build_image(tag: str, *options: str) -> str:
        result = subprocess.run(
            [docker, "build", "--tag", tag, *options],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    arguments = {"BUILDER": machine, "BASE": docker_base, "CHANNEL_ALIAS": MIRROR}
    pairs = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    with contextlib.closing(image.require_engine()) as client:
        output = build_image(machine, "--file", str(context / "machine"), str(context))
        try:
            output += build_image(name, *pairs, ".")
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
            for tag in (name, machine):
                with contextlib.suppress(ImageNotFound):
                    client.images.remove(tag)
            forget_steps(client, output)


FOREIGN = [
    "ENV LD_LIBRARY_PATH=/foreign/lib PYTHONPATH=/foreign LAB=lab",
    "ENV PATH=/foreign/bin:/usr/bin:/bin",
    'ENTRYPOINT ["/bin/false"]',
    "USER 1234",
]


@pytest.mark.parametrize("builder", ["classic", "buildkit"])
@pytest.mark.exhaustive
def test_base_settings_do_not_leave_the_environment(
    lock: Lock, docker_base: str, image_settings: dict[str, Any], tmp_path: Path, builder: str
) -> None:
    """CUDA's bases have variables for the loader and an entry point. Here its first stage makes an empty folder, for speed."""
    docker, env = docker_with(builder)
    base, name = f"{NAME}-base:{builder}", f"{NAME}-on-foreign:{builder}"
    _, _, second = rendered(lock, base).partition("\nFROM ${BASE}\n")
    first = f"ARG BASE={base}\nFROM {base} AS environment\nUSER 0\nRUN mkdir -p {PREFIX}/bin\n"
    (tmp_path / "Dockerfile").write_text(f"{first}\nFROM ${{BASE}}\n{second}")
    shutil.copytree(
        runtime_package.FOLDER,
        tmp_path / "provision_runtime",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with contextlib.closing(image.require_engine()) as client:
        container = client.containers.create(docker_base, ["true"])
        container.commit(*base.split(":"), changes=FOREIGN)
        container.remove()
        result = None
        try:
            inherited = client.images.get(base).attrs["Config"]["Env"]
            result = subprocess.run(
                [docker, "build", "--tag", name, "-"],
                env=env,
                input=packed(tmp_path),
                capture_output=True,
                check=False,
            )
            assert result.returncode == 0, result.stdout + result.stderr
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
            if result is not None and result.returncode == 0:
                client.images.remove(name)
                forget_steps(client, result.stdout.decode())
            client.images.remove(base)


def forget_steps(client: Any, output: str) -> None:
    """The classic builder keeps an image of each step, and of the first stage."""
    final_images = {
        identity
        for step_image in client.images.list()
        if step_image.tags
        for identity in [step_image.id.removeprefix("sha256:")[:12]]
    }
    for step in reversed(re.findall(r"^ ---> ([0-9a-f]{12})$", output, flags=re.MULTILINE)):
        if step not in final_images:
            with contextlib.suppress(Exception):  # another image lies on it
                client.images.remove(step)


@pytest.mark.needs("buildah", "skopeo")
@pytest.mark.root
@pytest.mark.exhaustive
def test_buildah_build_gives_the_same_environment(
    context: Path,
    docker_base: str,
    own_files: Files,
    image_settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    with storage() as (place, flags):
        with (
            contextlib.closing(image.require_engine()) as client,
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
        command = [
            "buildah",
            *flags,
            "bud",
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--tag",
            NAME,
            "-",
        ]
        result = subprocess.run(command, input=packed(context), capture_output=True, check=False)
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


def packed(context: Path) -> bytes:
    return subprocess.run(
        ["tar", "-c", "-C", context, "."], stdout=subprocess.PIPE, check=True
    ).stdout


def docker_with(builder: str) -> tuple[str, dict[str, str]]:
    """The docker command with a builder, and its environment."""
    docker = shutil.which("docker") if builder == "classic" else with_buildkit()
    if docker is None:
        pytest.skip("no docker command with BuildKit on this machine")
    return docker, {**os.environ, "DOCKER_BUILDKIT": "0" if builder == "classic" else "1"}


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
    relevant = {
        key: config.get(key) or None
        for key in ("Cmd", "User", "WorkingDir", "Healthcheck", "Entrypoint")
    }
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
