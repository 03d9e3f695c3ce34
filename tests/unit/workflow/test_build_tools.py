"""What a build takes of the machine is tried first. nvcc is a script that prints what NVIDIA's does, and
compiles by gcc."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from provision import catalog, resolver
from provision.core import host
from provision.core.errors import NoSpace, ProvisionError, ToolMissing, Unsolvable
from provision.core.types import Resolution
from provision.resolver import spec as specs
from provision.workflow import build_tools

pytestmark = pytest.mark.needs("c++")
COMPILED = catalog.SourceBuild(cuda=True)
NVCC = """\
#!/bin/sh
if [ "$1" = --version ]; then
    echo 'nvcc: NVIDIA (R) Cuda compiler driver'
    echo 'Cuda compilation tools, release {version}, V{version}.88'
    exit
fi
echo '#$ TOP={home}/bin/..' >&2
{trial}
"""
BROKEN = "echo 'x.h:1:2: error: unsupported GNU version! gcc 13 is too new' >&2; exit 1"


def toolkit(folder: Path, version: str, trial: str = "true") -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC.format(version=version, home=folder, trial=trial))
    nvcc.chmod(0o755)
    return folder


def resolution(cuda: str = "12.1", **spec: object) -> Resolution:
    content = {"torch": "2.3.1", "cuda": cuda, **spec}
    return resolver.resolve(specs.combine({}, content, name="lab"))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the machine that runs the tests has of CUDA."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(build_tools, "TOOLKITS", tmp_path)
    monkeypatch.setattr(host, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(host, "usable_cpus", lambda: 8)
    monkeypatch.setattr(build_tools, "PREFIX_GIB", 0)


def test_a_build_gets_the_toolkit_and_the_gpus_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = toolkit(tmp_path / "real", "12.4")
    link = tmp_path / "bin" / "nvcc"  # as modules and distributions have it
    link.parent.mkdir()
    link.write_text(f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    link.chmod(0o755)
    monkeypatch.setenv("PATH", f"{link.parent}:{os.environ['PATH']}")
    variables = build_tools.check("x 1", COMPILED, resolution(), {})
    assert variables["CUDA_HOME"] == str(home)
    assert variables["TORCH_CUDA_ARCH_LIST"] == "5.0;6.0;7.0;7.5;8.0;8.6;9.0+PTX"
    assert variables["MAX_JOBS"] == "8"
    variables = build_tools.check("x 1", COMPILED, resolution(gpu=["H100"]), {"MAX_JOBS": "1"})
    assert variables["TORCH_CUDA_ARCH_LIST"] == "9.0" and "MAX_JOBS" not in variables


@pytest.mark.parametrize(
    ("versions", "requested", "chosen"),
    [
        (("13.0", "12.4", "12.1"), True, "12.1"),
        (("13.0", "12.4"), True, "12.4"),
        (("12.4", "12.1"), "12.4", "12.4"),
        (("12.4",), "12.1", None),
        (("13.0",), True, None),
        (("1.21",), True, None),
        ((), True, None),
    ],
)
def test_nvcc_is_of_the_cuda_of_torch(
    tmp_path: Path, versions: tuple[str, ...], requested: bool | str, chosen: str | None
) -> None:
    for version in versions:
        toolkit(tmp_path / f"cuda-{version}", version)
    facts = replace(COMPILED, cuda=requested)
    if chosen is None:
        with pytest.raises(ToolMissing, match=versions[0] if versions else "there is none"):
            build_tools.check("x 1", facts, resolution(), {})
    else:
        home = build_tools.check("x 1", facts, resolution(), {})["CUDA_HOME"]
        assert home == str(tmp_path / f"cuda-{chosen}")


def test_the_users_toolkit_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = toolkit(tmp_path / "good", "12.1") / "bin"
    monkeypatch.setenv("PATH", f"{good}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "chosen", "11.8")))
    with pytest.raises(ToolMissing, match=r"chosen/bin/nvcc is of CUDA 11\.8"):
        build_tools.check("x 1", COMPILED, resolution(), {})
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(
        ToolMissing, match=r"/nowhere, which CUDA_HOME or CUDA_PATH names, has none"
    ):
        build_tools.check("x 1", COMPILED, resolution(), {})


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        ("nvcc", ToolMissing, "unsupported GNU version"),
        ("c++", ToolMissing, "`/nowhere/c..` compiles nothing here: .*cannot be started"),
        ("memory", Unsolvable, "one compiler takes 4 GiB: 3.0 GiB of memory are free. MAX_JOBS=1"),
        ("disk", NoSpace, "TMPDIR names another folder"),
    ],
)
def test_what_is_missing_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    error: type[ProvisionError],
    message: str,
) -> None:
    trial = BROKEN if problem == "nvcc" else "true"
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", "12.1", trial)))
    if problem == "c++":
        monkeypatch.setenv("CXX", "/nowhere/c++")
    elif problem == "memory":
        monkeypatch.setattr(host, "available_memory", lambda: 3 << 30)
    elif problem == "disk":
        monkeypatch.setattr(build_tools, "PREFIX_GIB", 1 << 30)
    with pytest.raises(error, match=message):
        build_tools.check("x 1", COMPILED, resolution(), {})


def test_a_build_without_a_compiler_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert build_tools.check("x 1", catalog.SourceBuild(), resolution(), {}) == {}
