"""Reading, writing and guarding a lock.

Real solves are tested in tests/integration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from provision import lockfile, resolver
from provision.adapters import conda, uv
from provision.catalog import TorchBuild
from provision.core.errors import CheckFailed, IntegrityError, InvalidSpec, Unsolvable
from provision.core.types import LockedPackage, Manager, Resolution
from provision.lockfile import conda_lock_v1
from provision.lockfile.diagnose.unsat_core import PinReasons
from provision.lockfile.joint_solve import JointSolve
from provision.resolver import spec
from tests.conftest import ROOT
from tests.integration import records
from tests.records import alias, make_channel, record

LOCK = """\
version: 1
metadata:
  content_hash: {linux-64: abc}
  custom_metadata: {provision_python_from: host, provision_portable: 'false', provision_inputs_sha256: feed}
package:
- name: python
  version: 3.11.7
  manager: conda
  platform: linux-64
  dependencies: {__glibc: '>=2.36'}
  url: file:///channel/linux-64/python-3.11.7-host_0.conda
  hash: {md5: d41d8cd98f00b204e9800998ecf8427e, sha256: SHA}
- name: six
  version: 1.17.0
  manager: pip
  platform: linux-64
  url: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
  hash: {sha256: SHA}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "conda-lock.yml"
    path.write_text(text)
    return path


def test_read(tmp_path: Path) -> None:
    lock = lockfile.read(write(tmp_path, LOCK.replace("SHA", "a" * 64)))
    assert (lock.python_from, lock.portable, lock.inputs_sha256, lock.content_hash) == (
        "host",
        False,
        "feed",
        "abc",
    )
    python = lock.find("python")
    assert python and (python.build, python.depends, python.filename) == (
        "host_0",
        ("__glibc >=2.36",),
        "python-3.11.7-host_0.conda",
    )
    assert [package.name for package in lock.by("pip")] == ["six"]


@pytest.mark.parametrize("sha", ["", "abc", "g" * 64, "A" * 64, "a" * 63, "a" * 65])
def test_malformed_hash_is_refused(tmp_path: Path, sha: str) -> None:
    with pytest.raises(IntegrityError, match=r"package\[0\] \(python\) has .*sha256"):
        lockfile.read(write(tmp_path, LOCK.replace("SHA", f"'{sha}'")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 1\n",
        "[",
        "- a\n",
        "version: 2\nmetadata: {}\npackage: []\n",
        LOCK.replace("package:", "packages:"),
    ],
)
def test_invalid_lock_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(IntegrityError, match=r"conda-lock\.yml"):
        lockfile.read(write(tmp_path, text))


@pytest.mark.parametrize("reader", [lockfile.read, lockfile.read_file])
@pytest.mark.parametrize(
    "before,after,problem",
    [
        ("  hash: {md5", "  hashes: {md5", r'package\[0\] \(python\): "hash" is a required property'),
        ("name: six", "name: 6", r"package\[1\]\.name: 6 is not of type"),
        ("version: 1.17.0", "version: 1.17", r"package\[1\]\.version \(six\): 1\.17 is not of type"),
        ("version: 1.17.0", "version: 2024-01-01", r"package\[1\]\.version \(six\): a date is not text"),
        (
            "version: 1.17.0",
            r'version: "1.17.0 --hash=sha256:0\ntqdm==4.67.1"',
            r'package\[1\]\.version \(six\): "1\.17\.0 --hash=sha256:0\\ntqdm==4\.67\.1" is not a version',
        ),
        ("name: six", "name: ../six", r"package\[1\]\.name \(\.\./six\): .* is not a package"),
        ("name: six", "name: six\tone", r"package\[1\]\.name .* is not a package's name"),
        (
            "url: file:///channel/linux-64/python-3.11.7-host_0.conda",
            r'url: "file:///channel\n--extra-index-url https://x.invalid/"',
            r"package\[0\]\.url \(python\): .* is not an address",
        ),
        (
            "platform: linux-64\n  dependencies",
            "platform: linux 64\n  dependencies",
            r'package\[0\]\.platform \(python\): "linux 64" is not a platform',
        ),
        ("manager: pip", "manager: npm", r'package\[1\]\.manager \(six\): "npm" is not one of'),
        ("{linux-64: abc}", "[abc]", r'metadata\.content_hash: \["abc"\] is not of type'),
    ],
)  # fmt: skip
def test_malformed_lock_is_refused_with_entry_and_field(
    tmp_path: Path, before: str, after: str, problem: str, reader: Callable[[Path], object]
) -> None:
    text = LOCK.replace("SHA", "a" * 64)
    assert before in text
    with pytest.raises(
        IntegrityError, match=rf"conda-lock\.yml is not a valid lock file: {problem}"
    ):
        reader(write(tmp_path, text.replace(before, after)))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=strategies.data())
def test_damaged_lock_is_read_or_refused(tmp_path: Path, data: strategies.DataObject) -> None:
    """Bytes of a real lock changed at random: never a traceback."""
    raw = bytearray(ROOT_LOCK)
    for _ in range(data.draw(strategies.integers(1, 6))):
        at = data.draw(strategies.integers(0, len(raw) - 1))
        end = min(len(raw), at + data.draw(strategies.integers(0, 40)))
        raw[at:end] = data.draw(
            strategies.one_of(strategies.binary(max_size=12), strategies.sampled_from(UGLY))
        )
    path = tmp_path / "conda-lock.yml"
    path.write_bytes(raw)
    with contextlib.suppress(IntegrityError):
        lock = lockfile.read(path)
        assert lock.platform in lock.platforms and all(
            len(package.sha256) == 64 for package in lock.packages
        )


WHOLE = (ROOT / "conda-lock.yml").read_bytes()
ROOT_LOCK = WHOLE[
    : WHOLE.index(b"\n- name: ", 8000) + 1
]  # its head and some packages: reading all of it so often would take a minute
UGLY = [
    *(
        b"\n",
        b": ",
        b"- ",
        b"&a ",
        b"*a",
        b"!!python/object:os.system ",
        b"{",
        b"\x00",
        b"\xff\xfe",
        b"2024-01-01",
        b"~",
        b"1e999",
        b"? ",
        b"!!int ",
        b"!!bool ",
    ),
    b"[" * 2000,
]
TWO = """\
version: 1
metadata:
  content_hash: {linux-64: abc, linux-aarch64: def}
  channels: [{url: conda-forge, used_env_vars: []}]
  custom_metadata: {provision_as_of: '2025-01-31'}
package:
- {name: six, version: '1', manager: conda, platform: linux-64, url: https://c.invalid/noarch/six-1-py_0.conda, hash: {sha256: SHA}}
- {name: six, version: '2', manager: conda, platform: linux-aarch64, url: https://c.invalid/noarch/six-2-py_0.conda, hash: {sha256: SHA}}
""".replace("SHA", "a" * 64)


def test_lock_is_read_for_one_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, TWO)
    lock = lockfile.read(path, "linux-aarch64")
    assert (lock.platform, lock.content_hash, lock.platforms) == (
        "linux-aarch64",
        "def",
        ("linux-64", "linux-aarch64"),
    )
    assert [(package.version, package.build, package.platform) for package in lock.packages] == [
        ("2", "py_0", "linux-aarch64")
    ]
    assert (lock.channels, lock.as_of) == (("conda-forge",), "2025-01-31")
    for machine, platform in (
        ("aarch64", "linux-aarch64"),
        ("x86_64", "linux-64"),
        ("riscv64", "linux-64"),
    ):
        set_machine(monkeypatch, machine)
        assert lockfile.read(path).platform == platform


def set_machine(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    names = os.uname_result((*os.uname()[:4], machine))
    monkeypatch.setattr("os.uname", lambda: names)


def test_missing_platform_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LOCK.replace("SHA", "a" * 64))
    with pytest.raises(
        InvalidSpec,
        match=r"has no packages for linux-aarch64\. It is for linux-64\. Add the platform to spec\.yml",
    ):
        lockfile.read(path, "linux-aarch64")
    set_machine(monkeypatch, "aarch64")
    with pytest.raises(
        InvalidSpec,
        match="lab is for linux-64, and this machine is linux-aarch64: you can lock it here, but not build it",
    ):
        lockfile.require_this_platform("lab", ["linux-64"])
    set_machine(monkeypatch, "x86_64")
    lockfile.require_this_platform("lab", ["linux-64"])


ENVIRONMENT = "channels: [conda-forge, nodefaults]\ndependencies: [python=3.11, pip: [six]]\n"
MACHINES = """\
subdirs:
  linux-aarch64: {packages: {__glibc: "2.28"}}
  linux-64: {packages: {__glibc: "2.17", __cuda: "12.1"}}
"""


@pytest.mark.parametrize(("levels", "is_read"), [(300, True), (401, False), (900, False)])
def test_a_deep_document_is_read_or_refused(tmp_path: Path, levels: int, is_read: bool) -> None:
    deep = "{a: " * levels + "1" + "}" * levels
    path = write(
        tmp_path,
        LOCK.replace("metadata:\n", f"metadata:\n  extra: {deep}\n").replace("SHA", "a" * 64),
    )
    assert f"extra: {deep}" in path.read_text()
    if is_read:
        lockfile.read_file(path)
    else:
        with pytest.raises(IntegrityError, match="nested too deeply"):
            lockfile.read_file(path)


def test_each_text_of_the_inputs_counts(tmp_path: Path) -> None:
    glibc = ("2.17", "2.28", "2.17")
    machines = [MACHINES.replace("2.17", version) for version in glibc]
    inputs = [lockfile.read_inputs(ENVIRONMENT, text, tmp_path) for text in machines]
    assert [dict(found.machines["linux-64"])["__glibc"] for found in inputs] == [*glibc]
    with pytest.raises(InvalidSpec, match="not YAML"):
        lockfile.read_inputs(f"{ENVIRONMENT}# \ud800\n", MACHINES, tmp_path)


def test_inputs_of_several_platforms() -> None:
    inputs = lockfile.read_inputs(ENVIRONMENT, MACHINES, Path("envs/lab"))
    assert list(inputs.machines) == ["linux-64", "linux-aarch64"]
    assert inputs.machines["linux-64"] == (("__cuda", "12.1"), ("__glibc", "2.17"))
    assert (inputs.conda, inputs.pip, inputs.channels) == (
        ("python=3.11",),
        ("six",),
        ("conda-forge",),
    )
    sources = ("find_links: six @ file:../../wheelhouse",)
    with_sources = lockfile.read_inputs(ENVIRONMENT, MACHINES, Path("envs/lab"), sources=sources)
    assert (with_sources.sources, with_sources.sha256 == inputs.sha256) == (sources, False)
    dated = lockfile.read_inputs(ENVIRONMENT, MACHINES, Path("envs/lab"), as_of="2025-01-31")
    assert (
        dated.sha256
        != inputs.sha256
        == lockfile.read_inputs(ENVIRONMENT + "# a word\n", MACHINES, Path("envs/lab")).sha256
    )


@pytest.mark.parametrize("version", ["2.6.3+cu12torch2.4", "2.6.3+cu118torch2.3"])
def test_a_named_wheel_for_another_torch_is_refused(version: str) -> None:
    """It was named by its address, so no page says which others there are."""
    request = uv.ResolveRequest(
        requirements=(),
        python="3.11",
        glibc="2.28",
        torch=TorchBuild(torch="2.3.1", cuda="12.1", cxx11_abi=False),
    )
    joint = JointSolve(
        conda.Solver(),
        conda.SolveRequest(specs=(), channels=(), virtual_packages=()),
        request,
        PinReasons.of((), {}),
    )
    package = LockedPackage(manager="pip", name="flash-attn", version=version, url="", sha256="")
    with pytest.raises(Unsolvable, match=r"flash-attn 2\.6\.3.* is for "):
        joint._check_local_builds((package,))
    joint._check_local_builds((dataclasses.replace(package, version="2.6.3+cu12torch2.3"),))


def test_the_environment_name_does_not_change_the_hashes() -> None:
    first, other = (
        lockfile.read_inputs(f"name: {name}\n{ENVIRONMENT}", MACHINES, Path("envs/lab"))
        for name in ("lab", "copy")
    )
    assert (
        first.sha256
        == other.sha256
        == lockfile.read_inputs(ENVIRONMENT, MACHINES, Path("envs/lab")).sha256
    )
    assert (
        first.sha256
        != lockfile.read_inputs(
            f"name: lab\n{ENVIRONMENT.replace('3.11', '3.12')}", MACHINES, Path("envs/lab")
        ).sha256
    )


@pytest.mark.parametrize(
    "machines,message",
    [
        ("subdirs: {}", r"virtual-packages\.yml\.subdirs: "),
        ("subdirs: {osx-64: {packages: {}}}", "linux-64.*linux-aarch64"),
        ("subdirs: {linux-64: {packages: {__cuda: '12.1'}}}", r"linux-64\.packages: .*__glibc"),
        ("subdirs: {linux-64: {packages: {__glibc: 2.28}}}", r"__glibc: 2\.28 .*string"),
        (
            "subdirs: {linux-64: {packages: {glibc: '2.28', __glibc: '2.28'}}}",
            "glibc. does not match",
        ),
        ("subdirs: {linux-64: []}", r"subdirs\.linux-64: "),
    ],
)
def test_invalid_virtual_packages(machines: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        lockfile.read_inputs(ENVIRONMENT, machines, Path("envs/lab"))


def resolution(**options: object) -> Resolution:
    return resolver.resolve(spec.combine({}, options, name=""))


def package(name: str, version: str, build: str = "") -> LockedPackage:
    manager: Manager = "conda" if build else "pip"
    needs = ("nvidia-cublas-cu12",) if manager == "pip" and "cpu" not in version else ()
    url = f"https://x.invalid/{name}"
    return LockedPackage(
        manager=manager,
        name=name,
        version=version,
        build=build,
        url=url,
        sha256="a" * 64,
        depends=needs,
    )


def test_guard_accepts_the_requested_build() -> None:
    cuda = resolution(torch="2.3", cuda="12.1")
    lockfile.guard([package("torch", "2.3.1"), package("nvidia-nccl-cu12", "2.20.5")], cuda)
    cpu = resolution(torch="2.13", cpu=True)
    lockfile.guard([package("torch", "2.13.0+cpu")], cpu)
    channel = resolution(torch="2.3", cuda="12.1", source="pytorch")
    lockfile.guard([package("pytorch", "2.3.1", "py3.11_cuda12.1_cudnn8.9.2_0")], channel)
    forge = resolution(torch="2.6", cuda="12.6")
    lockfile.guard([package("pytorch", "2.6.0", "cuda126_generic_py311_h1_200")], forge)


def test_guard_names_what_brings_another_cuda() -> None:
    jax = dataclasses.replace(package("jax-cuda12-plugin", "0.12"), depends=("nvidia-nccl-cu12",))
    packages = [package("torch", "2.13.0"), package("nvidia-nccl-cu13", "2.29.7"), jax]
    packages.append(package("nvidia-nccl-cu12", "2.20.5"))
    message = r"mixes .*for jax-cuda12-plugin"
    with pytest.raises(CheckFailed, match=message):
        lockfile.guard(packages, resolution(torch="2.13", cuda="13.0"))


def test_guard_recognizes_a_cpu_wheel() -> None:
    """The index's default wheels for aarch64 were CPU builds until CUDA 13; nothing in their name
    says so."""
    bare = dataclasses.replace(
        package("torch", "2.9.1"), depends=("numpy",), platform="linux-aarch64"
    )
    with pytest.raises(
        CheckFailed, match=r"request is for CUDA 12\.8, .* it is a CPU build.*linux-aarch64"
    ):
        lockfile.guard(
            [bare, package("nvidia-nccl-cu12", "2.27.5")], resolution(torch="2.9", cuda="12.8")
        )


@pytest.mark.parametrize(
    "options,packages,message",
    [
        ({"torch": "2.3", "cuda": "12.1"}, [("six", "1")], "has no torch"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.0")], "is 2.3.0, not 2.3.1"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1+cpu")], "not the cu121 build"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1"), ("nvidia-nccl-cu12", "2.21.5")], "locked NCCL is 2.21.5"),
        ({"torch": "2.3", "cuda": "12.1"}, [("torch", "2.3.1"), ("nvidia-nccl-cu12", "2.20.5"), ("nvidia-nccl-cu13", "2.28.9")], "mixes"),
        ({"torch": "2.13", "cpu": True}, [("torch", "2.13.0")], "not the cpu build"),
        ({"torch": "2.13", "cpu": True}, [("torch", "2.13.0+cpu"), ("nvidia-nccl-cu13", "2.29.7")], "request is for a CPU environment"),
        ({"torch": "2.9", "cuda": "13.0"}, [("torch", "2.9.1")], "not the cu130 build"),
        ({"torch": "2.3", "cuda": "12.1", "source": "pytorch"}, [("pytorch", "2.3.1", "py3.11_cpu_0")], "locked build is another one"),
        ({"torch": "2.6", "cuda": "12.6"}, [("pytorch", "2.6.0", "cpu_generic_py311_0")], "locked build is another one"),
    ],
)  # fmt: skip
def test_guard_refuses_and_names_the_record(
    options: dict[str, object], packages: list[tuple[str, ...]], message: str
) -> None:
    with pytest.raises(CheckFailed, match=message):
        lockfile.guard([package(*row) for row in packages], resolution(**options))


TORCH = [
    record("python", "3.11.1"),
    record("pytorch", "2.6.0", "cpu_generic_py311_h1_0", depends=["python 3.11.*"]),
]


def test_guard_names_the_requirement(tmp_path: Path) -> None:
    make_channel(tmp_path / "lab", {"linux-64": TORCH})
    inputs = lockfile.read_inputs(
        "channels: [lab]\ndependencies: [python=3.11, pytorch=2.6.0]\n",
        "subdirs: {linux-64: {packages: {__glibc: '2.28', __cuda: '12.6'}}}\n",
        Path("envs/lab"),
    )
    options = resolution(
        torch="2.6", cuda="12.6", source="conda-forge", python="3.11", companions=False
    )
    with pytest.raises(
        CheckFailed,
        match=r"request is for CUDA 12\.6.*cpu_generic_py311_h1_0\.conda.*`pytorch=2.6.0` \(written",
    ):
        lockfile.solve(inputs, options, solver=conda.Solver(alias(tmp_path)))


@pytest.mark.parametrize(
    "depends,joined",
    [
        (["python", "python >=3.9"], {"python": ">=3.9"}),
        (["python >=3.9", "python"], {"python": ">=3.9"}),
        (["nettle >=3.4.1", "nettle >=3.6,<3.7.0a0"], {"nettle": ">=3.4.1,>=3.6,<3.7.0a0"}),
        (["python_abi 3.11.* *_cp311", "python_abi >=3"], {"python_abi": "3.11.*,>=3 *_cp311"}),
        (["python_abi >=3", "python_abi 3.11.* *_cp311"], {"python_abi": ">=3,3.11.* *_cp311"}),
        (["python >=3.9,<3.10.0a0", "python >=3.9,<3.10.0a0 *_cpython"], {"python": ">=3.9,<3.10.0a0 *_cpython"}),
        (["blas * *mkl", "blas 1.0 0_mkl"], {"blas": "1.0 0_mkl"}),
        (["blas 1.0 0_mkl", "blas * *mkl", "blas <3"], {"blas": "1.0,<3 0_mkl"}),
        (["python 3.10.*|3.11.*", "python >=3.10.5"], {"python": "3.10.*,>=3.10.5|3.11.*,>=3.10.5"}),
    ],
)  # fmt: skip
def test_constraints_on_one_package_are_joined(depends: list[str], joined: dict[str, str]) -> None:
    assert (
        conda_lock_v1._dependencies(
            dataclasses.replace(package("x", "1", "0"), depends=tuple(depends))
        )
        == joined
    )


VERSIONS = ("3.10.4", "3.10.9", "3.11.2", "4.0")
BUILDS = ("0_cp311", "1_cp311", "0_pypy")


@settings(deadline=None, max_examples=60)
@given(
    strategies.lists(
        strategies.tuples(
            strategies.sampled_from(
                ["", "*", ">=3.10.5", "<4", "3.11.*", "3.10.*|3.11.*", "3.10.9|>=4", ">=3,<3.11"]
            ),
            strategies.sampled_from(["", "*", "*_cp311", "0_cp311"]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_joined_constraints_equal_their_conjunction(
    bounds: list[tuple[str, str]],
) -> None:
    texts = [f"{version or '*'} {build}" if build else version for version, build in bounds]
    package_of_it = dataclasses.replace(
        package("x", "1", "0"), depends=tuple(f"y {text}".strip() for text in texts)
    )
    joined = f"y {conda_lock_v1._dependencies(package_of_it)['y']}".strip()
    for version, build in itertools.product(VERSIONS, BUILDS):
        builds = {"y": dataclasses.replace(package("y", version), build=build)}
        each_is_met = not any(conda.unsatisfied(f"y {text}".strip(), builds) for text in texts)
        assert each_is_met is not bool(conda.unsatisfied(joined, builds)), (
            joined,
            version,
            build,
        )
        assert each_is_met is records.fits(
            joined,
            records.Record(name="y", version=version, build=build, build_number=0, fn="y", url="y"),
        )


def test_locked_package_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        package("torch", "1").version = "2"  # type: ignore[misc]
