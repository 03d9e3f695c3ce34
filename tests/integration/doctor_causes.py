"""Real causes of findings: namespaces, cgroups, mounts, wheels, processes. Each makes one, and says
how `doctor` is to be run."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from tests.integration.short_folders import short_folder
from tests.integration.waiting import eventually
from tests.programs import write_program

FILES = Path(__file__).parent.parent / "captures" / "healthy-8gpu"


@dataclass
class Run:
    """folder: of the test; its `home` is the user's. shell: what to do first in mount, host name and
    network namespaces of its own. group: a cgroup for doctor."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    shell: str = ""
    limits: dict[int, int] = field(default_factory=dict)
    group: Path | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def set_limits(self) -> None:
        if self.group is not None:
            (self.group / "cgroup.procs").write_text("0")
        for kind, value in self.limits.items():
            resource.setrlimit(kind, (value, value))


Cause = Callable[[Run, contextlib.ExitStack], None]


# Environments: wheels with the names, versions and metadata of the real ones.

WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"
VERSION_FILE = "__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\n"
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str],
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
) -> Path:
    distribution = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    texts = {
        **files,
        f"{distribution}.dist-info/METADATA": metadata,
        f"{distribution}.dist-info/WHEEL": WHEEL.format(tag=tag),
    }
    record = f"{distribution}.dist-info/RECORD"
    texts[record] = "".join(f"{path},,\n" for path in [*texts, record])
    path = folder / f"{distribution}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in_wheel, text in texts.items():
            archive.writestr(name_in_wheel, text)
    return path


def torch_wheel(folder: Path, version: str = "2.3.1+cu121") -> Path:
    text = VERSION_FILE.format(version=version, cuda=compiler_version() or "12.1")
    files = {"torch/__init__.py": "", "torch/version.py": text}
    requires = ("nvidia-nccl-cu12 (==2.20.5) ; platform_system == 'Linux'",)
    return make_wheel(folder, "torch", version, files, requires)


def compiler_version() -> str | None:
    """Of this machine's nvcc, which must not disagree with torch here."""
    compiler = shutil.which("nvcc", path=os.defpath)
    if compiler is None:
        return None
    child = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"release (\d+\.\d+)", child.stdout)
    return match[1] if match else None


def numpy_wheel(folder: Path, version: str = "1.26.4") -> Path:
    return make_wheel(folder, "numpy", version, {"numpy/__init__.py": f"x = {version!r}\n"})


def nccl_wheel(folder: Path, cuda: str = "cu12", version: str = "2.20.5") -> Path:
    files = {"nvidia/nccl/lib/libnccl.so.2": f"NCCL {version}"}
    return make_wheel(folder, f"nvidia-nccl-{cuda}", version, files)


def install(run: Run, *wheels: Path) -> Path:
    """Into a prefix, which doctor examines. Returns its site-packages."""
    prefix = run.folder / "prefix"
    site_packages = prefix / "lib" / PYTHON / "site-packages"
    _install_into(site_packages, *wheels)
    run.arguments += ["--prefix", str(prefix)]
    return site_packages


def _install_into(folder: Path, *wheels: Path) -> None:
    """Wheels of two CUDA versions overwrite each other's files."""
    command = ["uv", "pip", "install", "--quiet", "--no-config", "--no-index", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(folder)]
    subprocess.run([*command, *map(str, wheels)], check=True)


def healthy_environment(run: Run, stack: contextlib.ExitStack) -> None:
    folder = run.folder
    install(run, torch_wheel(folder), numpy_wheel(folder), nccl_wheel(folder))


def older_nccl(run: Run, stack: contextlib.ExitStack) -> None:
    install(run, torch_wheel(run.folder), nccl_wheel(run.folder, version="2.19.3"))


def mixed_wheels(run: Run, stack: contextlib.ExitStack) -> None:
    wheels = (nccl_wheel(run.folder), nccl_wheel(run.folder, "cu13", "2.27.7"))
    install(run, torch_wheel(run.folder), *wheels)


def numpy_2(run: Run, stack: contextlib.ExitStack) -> None:
    install(run, torch_wheel(run.folder, "2.2.2+cu121"), numpy_wheel(run.folder, "2.0.1"))


def hanging_torch(run: Run, stack: contextlib.ExitStack) -> None:
    install(run, torch_wheel(run.folder, "2.6.0+cu124"))


def user_site(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    _user_install(run, numpy_wheel(run.folder, "1.25.0"))


def user_site_of_other_packages(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    _user_install(run, make_wheel(run.folder, "einops", "0.8.0", {"einops/__init__.py": ""}))


def _user_install(run: Run, wheel: Path) -> None:
    _install_into(run.home / ".local" / "lib" / PYTHON / "site-packages", wheel)


def pythonpath(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    (run.folder / "code" / "numpy").mkdir(parents=True)
    run.variables["PYTHONPATH"] = str(run.folder / "code")


def pythonpath_of_other_packages(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    (run.folder / "code" / "mine").mkdir(parents=True)
    run.variables["PYTHONPATH"] = str(run.folder / "code")


def library_path(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    folder = run.folder / "cuda" / "lib64"
    folder.mkdir(parents=True)
    (folder / "libcudnn_ops_infer.so.8").write_text("")
    run.variables["LD_LIBRARY_PATH"] = str(folder)


def other_compiler(run: Run, stack: contextlib.ExitStack) -> None:
    healthy_environment(run, stack)
    text = "#!/bin/sh\necho 'Cuda compilation tools, release 9.2, V9.2.88'\n"
    tool(run, "nvcc", text)


def tool(run: Run, name: str, text: str) -> None:
    folder = run.folder / "tools"
    folder.mkdir(exist_ok=True)
    write_program(folder / name, text)
    run.variables["PATH"] = f"{folder}:{run.variables.get('PATH', os.defpath)}"


# Limits, memory and settings of the process.


def small_shm(run: Run, stack: contextlib.ExitStack) -> None:
    run.shell = "mount -t tmpfs -o size=32m tmpfs /dev/shm"


def full_shm(run: Run, stack: contextlib.ExitStack) -> None:
    run.shell = "mount -t tmpfs -o size=300m tmpfs /dev/shm; head -c 200M /dev/zero > /dev/shm/old"


def few_files(run: Run, stack: contextlib.ExitStack) -> None:
    run.limits[resource.RLIMIT_NOFILE] = 256


def small_memlock(run: Run, stack: contextlib.ExitStack) -> None:
    """The limit is real; the adapter is laid out."""
    run.limits[resource.RLIMIT_MEMLOCK] = 64 << 10
    root = laid_out_root(run)
    for folder in ("dev/infiniband", "sys/class/infiniband"):
        shutil.copytree(FILES / folder, root / folder)


def read_only_temporary_folders(run: Run, stack: contextlib.ExitStack) -> None:
    """As in a container whose root is read-only. The folder of the test stays writable."""
    lines = []
    test_folder = shlex.quote(str(run.folder))
    for folder, access in (("/tmp", "ro"), ("/var/tmp", "ro"), (test_folder, "rw")):
        lines.append(f"mount --bind {folder} {folder}; mount -o remount,bind,{access} {folder}")
    run.shell = "; ".join([*lines, "cd /tmp"])
    run.variables["PWD"] = "/tmp"


def laid_out_root(run: Run) -> Path:
    """A root whose proc and etc are this machine's."""
    root = run.folder / "root"
    (root / run.home.relative_to("/")).mkdir(parents=True)
    (root / "dev" / "shm").mkdir(parents=True)
    (root / "bin").mkdir()
    shutil.copytree(FILES / "sys" / "class" / "net", root / "sys" / "class" / "net")
    (root / "proc").symlink_to("/proc")
    (root / "etc").symlink_to("/etc")
    run.arguments += ["--root", str(root)]
    return root


def cpu_quota(run: Run, stack: contextlib.ExitStack) -> None:
    group = stack.enter_context(
        cgroup("cpu", {"cpu.cfs_quota_us": "50000"}, {"cpu.max": "50000 100000"})
    )
    run.shell = f"echo $$ > {group}/cgroup.procs"


def killed_for_memory(run: Run, stack: contextlib.ExitStack) -> None:
    group = stack.enter_context(
        cgroup("memory", {"memory.limit_in_bytes": "300M"}, {"memory.max": "300M"})
    )
    eat = f"{shlex.quote(sys.executable)} -S -c 'x = bytearray(600 << 20)'"
    run.shell = f"echo $$ > {group}/cgroup.procs; ({eat}) 2>/dev/null || true"


@contextlib.contextmanager
def cgroup(
    controller: str, first_version: dict[str, str], second_version: dict[str, str]
) -> Iterator[Path]:
    """A new group with limits, of whichever version this machine has."""
    top = Path("/sys/fs/cgroup") / controller
    settings = first_version
    if not top.is_dir():
        top, settings = Path("/sys/fs/cgroup"), second_version
    group = Path(tempfile.mkdtemp(prefix="provision-doctor-", dir=top))
    try:
        for name, value in settings.items():
            (group / name).write_text(value)
        yield group
    finally:
        eventually(lambda: is_removed(group))


def is_removed(group: Path) -> bool:
    """It can be removed when its last process is gone."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def many_threads(run: Run, stack: contextlib.ExitStack) -> None:
    run.variables["OMP_NUM_THREADS"] = "512"


def nccl_setting(run: Run, stack: contextlib.ExitStack) -> None:
    run.variables["NCCL_P2P_DISABLE"] = "1"


def nccl_setting_mistyped(run: Run, stack: contextlib.ExitStack) -> None:
    run.variables["NCCL_TYPO_X"] = "1"


# Network.


def absent_interface(run: Run, stack: contextlib.ExitStack) -> None:
    run.variables["GLOO_SOCKET_IFNAME"] = "eth77"


def duplicate_routes(run: Run, stack: contextlib.ExitStack) -> None:
    """Two interfaces with addresses in one network."""
    lines = ["ip link set lo up", "ip link add d0 type veth peer name d1"]
    for number in (0, 1):
        lines.append(f"ip addr add 10.9.8.{number + 1}/24 dev d{number}")
        lines.append(f"ip link set d{number} up")
    run.shell = "; ".join(lines)


def loopback_name(run: Run, stack: contextlib.ExitStack) -> None:
    _own_hosts(run, "127.0.0.1 localhost\n127.0.1.1 doctor-test\n")
    run.arguments.append("--peers")


def unresolvable_name(run: Run, stack: contextlib.ExitStack) -> None:
    _own_hosts(run, "127.0.0.1 localhost\n")


def _own_hosts(run: Run, text: str) -> None:
    """A host name, hosts file and resolver of its own."""
    (run.folder / "hosts").write_text(text)
    (run.folder / "nsswitch").write_text("hosts: files\n")
    folder = shlex.quote(str(run.folder))
    run.shell = (
        f"hostname doctor-test; mount --bind {folder}/hosts /etc/hosts;"
        f" mount --bind {folder}/nsswitch /etc/nsswitch.conf"
    )


def busy_port(run: Run, stack: contextlib.ExitStack) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    run.variables["MASTER_PORT"] = str(server.getsockname()[1])


# Disks.


def full_disk(run: Run, stack: contextlib.ExitStack) -> None:
    cache = run.folder / "cache"
    cache.mkdir()
    run.variables["HF_HOME"] = str(cache)
    disk = shlex.quote(str(cache))
    run.shell = (
        f"mount -t tmpfs -o size=1m tmpfs {disk};"
        f" head -c 2M /dev/zero > {disk}/model 2>/dev/null || true"
    )


def full_read_only_disk(run: Run, stack: contextlib.ExitStack) -> None:
    """As a mounted pack is."""
    full_disk(run, stack)
    run.shell += f"; mount -o remount,ro {shlex.quote(run.variables['HF_HOME'])}"


def little_space(run: Run, stack: contextlib.ExitStack) -> None:
    cache = stack.enter_context(short_folder("doctor"))
    run.variables["TMPDIR"] = str(cache)
    run.shell = f"mount -t tmpfs -o size=100m tmpfs {cache}"


def no_inodes(run: Run, stack: contextlib.ExitStack) -> None:
    cache = run.folder / "cache"
    cache.mkdir()
    run.variables["PIP_CACHE_DIR"] = str(cache)
    run.shell = f"mount -t tmpfs -o size=20g,nr_inodes=1 tmpfs {shlex.quote(str(cache))}"


# Containers, notebooks, ssh, settings.


def docker_without_gpus(run: Run, stack: contextlib.ExitStack) -> None:
    """The engine is real; the GPU is laid out."""
    root = laid_out_root(run)
    device = "sys/bus/pci/devices/0000:1b:00.0"
    shutil.copytree(FILES / device, root / device)
    docker = shutil.which("docker")
    assert docker is not None
    (root / "bin" / "docker").symlink_to(docker)
    for name in ("nvidia-smi", "dmesg"):
        (root / "bin" / name).symlink_to(FILES / "bin" / name)
    shutil.copytree(FILES / "share", root / "share")
    run.arguments += ["--only", "docker-gpu-runtime"]
    run.variables.update({key: os.environ[key] for key in ("DOCKER_HOST",) if key in os.environ})


def dangling_kernel(run: Run, stack: contextlib.ExitStack) -> None:
    _add_kernel(run, run.folder / "removed" / "bin" / "python")


def unactivated_kernel(run: Run, stack: contextlib.ExitStack) -> None:
    prefix = run.folder / "conda"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "etc" / "conda" / "activate.d").mkdir(parents=True)
    (prefix / "etc" / "conda" / "activate.d" / "cuda.sh").write_text("export CUDA_HOME=/x\n")
    _add_kernel(run, prefix / "bin" / "python")


def _add_kernel(run: Run, python: Path) -> None:
    """As `jupyter kernelspec install --user` does."""
    source = run.folder / "kernel"
    source.mkdir()
    text = f'{{"argv": ["{python}", "-m", "ipykernel"], "display_name": "x", "language": "python"}}'
    (source / "kernel.json").write_text(text)
    prefix = str(run.home / ".local")
    KernelSpecManager().install_kernel_spec(str(source), "lab", prefix=prefix)


@contextlib.contextmanager
def notebook_server(run: Run, python: str) -> Iterator[Path]:
    """A server that everyone can use. Yields the file in which it describes itself."""
    variables = {"PATH": os.defpath, "HOME": str(run.home)}
    command = [python, "-m", "jupyter_server", "--allow-root", "--no-browser", "--port=0"]
    command += ["--ServerApp.ip=0.0.0.0", "--IdentityProvider.token="]
    server = subprocess.Popen(
        [*command, "--ServerApp.password="], env=variables, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if "is running at" in line:
                break
        runtime = run.home / ".local" / "share" / "jupyter" / "runtime"
        file = runtime / f"jpserver-{server.pid}.json"
        while not file.exists():
            assert server.poll() is None
        yield file
    finally:
        server.kill()
        server.communicate()


def file_instead_of_null(run: Run, stack: contextlib.ExitStack) -> None:
    """As a redirection leaves it after somebody removed the device."""
    run.shell = f"touch {shlex.quote(str(run.folder))}/null; {_BIND_NULL.format(run.folder)}"


def closed_null(run: Run, stack: contextlib.ExitStack) -> None:
    folder = shlex.quote(str(run.folder))
    run.shell = f"mknod -m 600 {folder}/null c 1 3; {_BIND_NULL.format(run.folder)}"


_BIND_NULL = "mount --bind '{}/null' /dev/null"


def no_proc(run: Run, stack: contextlib.ExitStack) -> None:
    run.shell = "mount -t tmpfs tmpfs /proc"


def read_only_home(run: Run, stack: contextlib.ExitStack) -> None:
    run.shell = f"mount -t tmpfs -o ro tmpfs {shlex.quote(str(run.home))}"


def framework_in_the_home(run: Run, stack: contextlib.ExitStack) -> None:
    """Without an environment to examine."""
    _user_install(run, numpy_wheel(run.folder, "1.25.0"))


def open_key(run: Run, stack: contextlib.ExitStack) -> None:
    folder = run.home / ".ssh"
    folder.mkdir(mode=0o700)
    key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    key.chmod(0o644)
    answer = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True)
    assert "UNPROTECTED PRIVATE KEY FILE" in answer.stderr


def dead_agent(run: Run, stack: contextlib.ExitStack) -> None:
    path = stack.enter_context(short_folder("agent")) / "socket"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()
    agent.kill()
    agent.communicate()
    assert path.is_socket()
    run.variables["SSH_AUTH_SOCK"] = str(path)


@dataclass(frozen=True)
class Case:
    """row: of the table of failure modes; 0 for what it does not have. marks: what else it needs."""

    cause: Cause
    id: str
    row: int
    marks: tuple[pytest.MarkDecorator, ...] = ()


DOCKER = (pytest.mark.docker, pytest.mark.needs("docker"))
CASES = (
    Case(older_nccl, "nccl-older", 1),
    Case(mixed_wheels, "cuda-wheels-mixed", 2),
    Case(library_path, "library-path", 3),
    Case(numpy_2, "numpy-abi", 6),
    Case(user_site, "user-site", 9),
    Case(user_site_of_other_packages, "user-site-on-path", 9),
    Case(pythonpath, "pythonpath", 10),
    Case(pythonpath_of_other_packages, "pythonpath-on-path", 10),
    Case(other_compiler, "cuda-toolkit-other", 15),
    Case(docker_without_gpus, "docker-gpu-runtime", 23, DOCKER),
    Case(small_shm, "shm-small", 24),
    Case(full_shm, "shm-full", 24),
    Case(small_memlock, "memlock-small", 25),
    Case(read_only_temporary_folders, "tmpdir-unusable", 0),
    Case(few_files, "nofile-small", 26),
    Case(nccl_setting, "nccl-setting", 28),
    Case(nccl_setting_mistyped, "nccl-setting-mistyped", 28),
    Case(cpu_quota, "cpu-quota", 30),
    Case(many_threads, "omp-threads", 31),
    Case(absent_interface, "interface-absent", 32),
    Case(duplicate_routes, "routes-duplicate", 33, (pytest.mark.needs("ip"),)),
    Case(loopback_name, "interface-loopback", 34, (pytest.mark.needs("hostname"),)),
    Case(busy_port, "port-busy", 35),
    Case(unresolvable_name, "own-name-unresolvable", 37, (pytest.mark.needs("hostname"),)),
    Case(hanging_torch, "torch-known-bad", 45),
    Case(full_disk, "cache-full", 58),
    Case(little_space, "cache-space-low", 58),
    Case(no_inodes, "cache-full", 58),
    Case(unactivated_kernel, "kernel-unactivated", 64),
    Case(dangling_kernel, "kernel-dangling", 65),
    Case(open_key, "ssh-key-open", 67, (pytest.mark.needs("ssh-keygen"),)),
    Case(dead_agent, "ssh-agent-dead", 67, (pytest.mark.needs("ssh-agent"),)),
    Case(killed_for_memory, "oom-killed", 0),
    Case(read_only_home, "home-unwritable", 0),
    Case(file_instead_of_null, "null-device", 0),
    Case(closed_null, "null-device", 0),
    Case(no_proc, "proc-missing", 0),
    Case(framework_in_the_home, "user-site-on-path", 9),
)
