"""Images in a real engine, as a user runs them: exit codes, signals, processes that are left behind, users, folders, Jupyter."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.errors import ContainerError

from provision import lockfile as locks
from provision.adapters.docker import require_engine
from provision.adapters.uv import uv_executable
from provision.core.types import Image, LockedPackage
from provision.environment import runtime_package
from provision.image import docker
from provision.image.docker import find_engine_base, load_image
from provision.image.export import export_image
from provision.image.oci_layout import NAME as REF_NAME
from tests.conftest import absence
from tests.integration.test_image import EnvironmentParts, Watching, build, wheel
from tests.integration.waiting import eventually
from tests.unit.lockfile.test_lock_verify import sound, wheel_entry

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]

OTHER_USER = 65533

# What remains of processes, once a while is over: any but init and the one that asks.
REMAINS = """
def remains(seconds=3.0):
    import os, time
    end = time.monotonic() + seconds
    while True:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if int(name) not in (1, os.getpid()):
                found.append(state)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)
"""
# As a DataLoader whose workers were killed: what they had started is nobody's.
POOL = (
    REMAINS
    + """
import multiprocessing, os, signal, subprocess, time

def work(ready):
    ready.put(subprocess.Popen(["sleep", "60"]).pid)
    time.sleep(60)

fork = multiprocessing.get_context("fork")
ready = fork.SimpleQueue()
workers = [fork.Process(target=work, args=(ready,)) for _ in range(4)]
for worker in workers:
    worker.start()
orphans = [ready.get() for _ in workers]
for worker in workers:
    worker.kill()
    worker.join()
for orphan in orphans:
    os.kill(orphan, signal.SIGKILL)
print(os.getpid(), remains())
"""
)
WAITS = """
import signal, sys, time
if "handles" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
print("ready", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(42)
"""
OPENS = """
#include <dlfcn.h>
int answered(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    return library ? ((int (*)(void)) dlsym(library, "answer"))() : 1;
}
"""
WRITES = """
import getpass, json, os, pathlib, tempfile
for place in ("/workspace/x", "/tmp/x", "/data/x"):
    pathlib.Path(place).write_text("x")
tempfile.TemporaryFile().close()
given = pathlib.Path("/given/y").read_text()
print(json.dumps([os.getuid(), os.getgid(), getpass.getuser(), str(pathlib.Path.home()), os.getcwd(), given]))
"""


@pytest.fixture(scope="module")
def environment_parts(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentParts:
    environment_parts = EnvironmentParts(tmp_path_factory.mktemp("made"))
    environment_parts.wheels.append(
        wheel(environment_parts.folder, "torch", "2.3.1", {"torch/__init__.py": ""})
    )
    return environment_parts


@pytest.fixture(scope="module")
def client() -> Any:
    return require_engine()


@pytest.fixture(scope="module")
def toy(
    environment_parts: EnvironmentParts,
    client: Any,
    docker_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Image]:
    """With Jupyter's server, where the package index of this machine has it."""
    prefix = environment_parts.prefix(
        tmp_path_factory.mktemp("prefix") / "toy", environment_parts.lock()
    )
    python, server = prefix.path / "bin" / "python", tmp_path_factory.mktemp("wheels")
    packages = ["jupyter-server", "ipykernel"]
    subprocess.run([python, "-m", "pip", "wheel", "-q", "-w", server, *packages], check=False)
    wheels = sorted(server.iterdir())
    if wheels:
        install: list[str | Path] = [uv_executable(), "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--python", python, *wheels], check=True)
    lock = environment_parts.lock()
    locked_names = {package.name for package in lock.packages}
    more = [
        installed(path)
        for path in sorted(prefix.path.glob("lib/python*/site-packages/*.dist-info"))
    ]
    lock = dataclasses.replace(
        lock,
        packages=(
            *lock.packages,
            *(package for package in more if package.name not in locked_names),
        ),
    )
    base = find_engine_base(client, docker_base, Watching())
    toy_image = build(
        environment_parts,
        lock,
        prefix,
        base,
        runtime_package.FOLDER,
        tmp_path_factory.mktemp("layouts") / "toy",
        *environment_parts.wheels,
        *wheels,
    )
    name = f"provision-test/run-{os.getpid()}"  # another run of these tests may use the engine too
    toy_image = dataclasses.replace(toy_image, reference=f"{name}:toy")
    load_image(toy_image, client, Watching())
    yield toy_image
    for tag in ("toy", "latest"):
        client.images.remove(f"{name}:{tag}")


def installed(info: Path) -> LockedPackage:
    name, version = info.name.removesuffix(".dist-info").split("-")
    return LockedPackage(
        manager="pip",
        name=name.replace("_", "-"),
        version=version,
        url="file:///none",
        sha256="0" * 64,
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working folder with an environment whose image is named with `--set image=`."""
    (tmp_path / "envs" / "toy").mkdir(parents=True)
    (tmp_path / "envs" / "toy" / "spec.yml").write_text(
        'torch: "2.3"\ncpu: true\npython_from: host\n'
    )
    return tmp_path


def start(work: Path, *arguments: str, user: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [
        *user,
        sys.executable,
        "-c",
        "from provision.cli.main import main; main()",
        "image",
        "run",
        "toy",
        *arguments,
    ]
    env = {
        **os.environ,
        "PROVISION_DATA": str(work / "data"),
        "PROVISION_CACHE": str(work / "cache"),
    }
    if user:
        env["HOME"] = str(work)
    return subprocess.Popen(
        command,
        cwd=work,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(work: Path, *arguments: str) -> tuple[int, str, str]:
    child = start(work, *arguments)
    out, err = child.communicate(timeout=120)
    return child.returncode, out, err


def remaining(client: Any, environment_parts: Image) -> list[Any]:
    return list(
        client.containers.list(
            all=True, filters={"ancestor": docker.find_engine_id(environment_parts, client)}
        )
    )


def test_exit_code_is_the_commands(work: Path, toy: Image, client: Any) -> None:
    code, out, err = run(
        work,
        "--set",
        f"image={toy.reference}",
        "--",
        "python",
        "-c",
        "import sys; print(sys.prefix); sys.exit(37)",
    )
    assert (code, out) == (37, "/opt/env\n"), err
    assert remaining(client, toy) == []


@pytest.mark.parametrize(
    ("number", "handles", "code"),
    [
        (signal.SIGINT, True, 42),
        (signal.SIGTERM, True, 43),
        (signal.SIGTERM, False, 128 + signal.SIGTERM),
    ],
)
def test_signal_reaches_the_program(
    work: Path, toy: Image, client: Any, number: int, handles: bool, code: int
) -> None:
    child = start(
        work,
        "--set",
        f"image={toy.reference}",
        "--",
        "python",
        "-c",
        WAITS,
        *(["handles"] if handles else []),
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == code
    assert remaining(client, toy) == []


def test_killed_workers_leave_nothing(work: Path, toy: Image, client: Any) -> None:
    code, out, err = run(work, "--set", f"image={toy.reference}", "--", "python", "-c", POOL)
    number, _, remains = out.strip().partition(" ")
    assert (code, remains, number != "1") == (0, "[]", True), err
    without = client.containers.run(
        docker.find_engine_id(toy, client),
        ["python", "-c", POOL],
        remove=True,
        init=False,
        network_mode="none",
    ).decode()
    assert (
        without.strip() == "1 ['Z', 'Z', 'Z', 'Z']"
    )  # Python as the first process takes care of its own children only


def test_any_user_can_work(work: Path, toy: Image) -> None:
    (work / "data").mkdir(mode=0o777)
    (work / "data").chmod(0o777)
    (work / "given").mkdir()
    (work / "given" / "y").write_text("given")
    mounts = ["--mount", f"{work / 'data'}:/data", "--mount", f"{work / 'given'}:/given:ro"]
    code, out, err = run(
        work,
        *("--set", f"image={toy.reference}", "--scratch", "--set", "user=4242:4243"),
        *(*mounts, "--", "python", "-c", WRITES),
    )
    assert code == 0, err
    assert json.loads(out) == [4242, 4243, "provision", "/tmp", "/workspace", "given"]
    written = (work / "data" / "x").stat()
    assert (written.st_uid, written.st_gid) == (4242, 4243)
    code, _, err = run(
        work,
        "--set",
        f"image={toy.reference}",
        *mounts,
        "--",
        "python",
        "-c",
        "open('/given/z', 'w')",
    )
    assert code == 1 and "Read-only file system" in err


@pytest.mark.needs("setpriv")
def test_results_of_a_script_are_the_callers_in_the_current_folder(
    caller: tuple[Path, list[str]], toy: Image
) -> None:
    work, user = caller
    (work / "train.py").write_text("open('result', 'w').write('saved')")
    command = ("--", "python", "train.py")
    child = start(work, "--set", f"image={toy.reference}", *command, user=user)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert (work / "result").read_text() == "saved"
    assert (work / "result").stat().st_uid == work.stat().st_uid
    missing = Path(f"/provision-missing-{os.getpid()}")
    mount = ("--mount", f"{missing}:/workspace", "--", "python", "-c", "1")
    code, _, err = run(work, "--set", f"image={toy.reference}", *mount)
    assert code == 125 and "does not exist" in err, err
    assert not missing.exists()
    code, _, err = run(work, "--set", f"image={toy.reference}", "--scratch", *command)
    assert code == 3 and "train.py is not in the image of toy" in err


def test_runs_without_home_and_on_a_read_only_root(toy: Image, client: Any) -> None:
    """As Apptainer starts it: whoever it is, the home of that user, nothing to write to but /tmp."""
    script = "import os, sqlite3, ssl, tempfile, uuid; tempfile.TemporaryFile().close(); print(os.path.expanduser('~'), os.getuid())"
    options: dict[str, Any] = {
        "user": "31337:31337",
        "read_only": True,
        "tmpfs": {"/tmp": ""},
        "environment": {"HOME": "/home/me"},
    }
    result = client.containers.run(
        docker.find_engine_id(toy, client),
        ["python", "-c", script],
        working_dir="/",
        network_mode="none",
        remove=True,
        **options,
    )
    assert result.decode().strip() == "/home/me 31337"


@pytest.mark.exhaustive
@pytest.mark.mounts
@pytest.mark.needs("umoci", "setpriv")
def test_unprivileged_user_runs_it_without_an_engine(toy: Image) -> None:
    """As enroot and Apptainer do, with a user namespace alone."""
    with tempfile.TemporaryDirectory() as name:
        export_image(toy, Path(name, "layout"))
        Path(name).chmod(0o777)
        nobody = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            f"HOME={name}",
        ]
        (reference,) = (
            row["annotations"][REF_NAME]
            for row in json.loads((Path(name) / "layout" / "index.json").read_text())["manifests"]
        )
        root = f"{name}/rootfs"
        # Without the hash of every unpacked file, which umoci writes for a later repack.
        unpack = ["umoci", "raw", "unpack", "--rootless", "--image", f"{name}/layout:{reference}"]
        subprocess.run([*nobody, *unpack, root], check=True, capture_output=True)
        script = f"mount --rbind /proc {root}/proc && exec chroot {root} /opt/env/bin/greet"
        result = subprocess.run(
            [*nobody, "unshare", "-r", "-m", "sh", "-c", script],
            check=True,
            capture_output=True,
            text=True,
        )
        assert result.stdout == "hello\n"


@pytest.mark.needs("cc")
def test_library_without_rpath_loads_libibverbs_from_the_environment(
    work: Path, toy: Image
) -> None:
    """As libnccl.so of NVIDIA's wheels, which has none, opens it by name: no LD_LIBRARY_PATH, and ldconfig does not know /opt/env."""
    compile = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
    subprocess.run(
        [*compile, work / "libibverbs.so.1"],
        input="int answer(void) { return 7; }",
        text=True,
        check=True,
    )
    subprocess.run([*compile, work / "libcaller.so"], input=OPENS, text=True, check=True)
    mounts = [
        "--mount",
        f"{work}/libibverbs.so.1:/opt/env/lib/libibverbs.so.1:ro",
        "--mount",
        f"{work}/libcaller.so:/given/libcaller.so:ro",
    ]
    script = "import ctypes, sys; sys.exit(ctypes.CDLL('/given/libcaller.so').answered())"
    code, _, err = run(
        work, "--set", f"image={toy.reference}", *mounts, "--", "python", "-c", script
    )
    assert code == 7, err


@pytest.fixture
def caller(work: Path) -> Iterator[tuple[Path, list[str]]]:
    """A working folder like `work` of another user who may use the engine, and how a command is
    started as that user; without root, it is this one."""
    if os.geteuid() != 0:
        yield work, []
        return
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    socket_path = Path(urllib.parse.urlsplit(address).path)
    group = socket_path.stat().st_gid
    user = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", f"--groups={group}"]
    if subprocess.run([*user, "test", "-w", socket_path]).returncode:
        absence("docker", f"other users cannot reach the engine at {socket_path}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a folder"
        shutil.copytree(work, folder)
        for path in (Path(name), folder, *folder.rglob("*")):
            os.chown(path, OTHER_USER, OTHER_USER)
        yield folder, user


@pytest.mark.index
@pytest.mark.needs("setpriv")
def test_jupyter_requires_its_token_listens_on_loopback_and_saves_as_its_caller(
    caller: tuple[Path, list[str]], toy: Image, client: Any
) -> None:
    work, user = caller
    imports = ["python", "-c", "import jupyter_server, ipykernel"]
    try:
        client.containers.run(
            docker.find_engine_id(toy, client), imports, remove=True, network_mode="none"
        )
    except ContainerError:
        absence("index", "jupyter-server cannot be had from the package index of this machine")
    content = sound()
    content["package"].append(wheel_entry("jupyter-server", "2.0"))
    (work / "envs" / "toy" / locks.FILE).write_text(yaml.safe_dump(content))
    read_only = ("--mount", "/tmp:/workspace:ro")
    child = start(work, "--set", f"image={toy.reference}", "--jupyter", *read_only, user=user)
    assert "could not save" in child.communicate(timeout=120)[1] and child.returncode == 3
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    child = start(
        work, "--set", f"image={toy.reference}", "--jupyter", "--port", str(port), user=user
    )
    try:
        assert child.stderr is not None
        url = next(
            filter(None, (re.search(r"http://127\.0\.0\.1:\d+/\S+", line) for line in child.stderr))
        )[0]
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["token"][0]
        eventually(lambda: answer("127.0.0.1", port, "GET", "/api/status", token) == 200)
        assert answer("127.0.0.1", port, "GET", "/api/status", None) == 403
        assert answer("127.0.0.1", port, "POST", "/api/kernels", token) == 201
        (container,) = remaining(client, toy)
        assert token not in " ".join(container.attrs["Config"]["Cmd"])
        container.reload()
        gateway = container.attrs["NetworkSettings"]["Gateway"]  # an address of this machine, too
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((gateway, port), timeout=10)
        notebook = {"type": "file", "format": "text", "content": "saved"}
        for address in ("/api/contents/a.txt", "/api/contents/envs/b.txt"):
            assert answer("127.0.0.1", port, "PUT", address, token, notebook) == 201
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert remaining(client, toy) == []
    for file in (work / "a.txt", work / "envs" / "b.txt"):
        assert file.read_text() == "saved"
        assert (file.stat().st_uid, file.stat().st_gid) == (work.stat().st_uid, work.stat().st_gid)


def answer(
    host: str, port: int, method: str, path: str, token: str | None, content: Any = ()
) -> int | None:
    """The status of an answer, or None where there is none (yet)."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    headers = {"Authorization": f"token {token}"} if token else {}
    body = json.dumps(dict(content)) if method != "GET" else None
    try:
        connection.request(method, path, body=body, headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
