"""What compiling an extension of torch takes of this machine: CUDA's toolkit, a C++ compiler, memory,
room. All is tried before a build that may take an hour.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from provision import catalog
from provision.core import host
from provision.core.errors import NoSpace, ToolMissing, Unsolvable
from provision.core.process import run
from provision.core.tempdirs import temporary_directory
from provision.core.types import Resolution

GIB = 1 << 30
# A prefix of torch 2.3.1 with CUDA 12.1 has 5.2 GiB; a build adds its own files.
PREFIX_GIB = 8
TOOLKITS = Path("/usr/local")
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
_SM = re.compile(r"sm_(\d+)(\d[a-z]?)")
_CUDA_OF_NVCC = re.compile(r"release (\d+\.\d+)")
_TOP = re.compile(r"#\$ TOP=(.+)")
_ERROR = re.compile(r".*\b(?:error|fatal)\b.*")


def check(
    title: str, facts: catalog.SourceBuild, resolution: Resolution, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables with which an extension is compiled here.

    env: variables that the user gave. Raises ToolMissing, Unsolvable and NoSpace if this machine
    cannot do it.
    """
    room = tempfile.gettempdir()
    free_gib = shutil.disk_usage(room).free / GIB
    if free_gib < PREFIX_GIB:
        raise NoSpace(
            f"{title} is built in a copy of the environment, which may take {PREFIX_GIB} GiB: "
            f"{room} has {free_gib:.1f} GiB. TMPDIR names another folder."
        )
    if not facts.cuda:
        return {}
    variables = {}
    if "MAX_JOBS" not in env:
        variables["MAX_JOBS"] = str(_jobs(title, facts.memory_gib))
    _compile(title, os.environ.get("CXX") or "c++", "-x", "c++")
    if resolution.cuda is not None:
        variables[ARCHITECTURES] = _architectures(resolution)
        nvcc = _nvcc(title, facts.cuda, resolution.cuda)
        # nvcc on PATH may be a link, or a script that starts another one.
        top = _TOP.search(_compile(title, str(nvcc), "--verbose"))
        variables["CUDA_HOME"] = os.path.realpath(top[1]) if top else str(nvcc.parents[1])
    return variables


def wheel_headers(prefix: Path) -> dict[str, str]:
    """The headers of CUDA's libraries in NVIDIA's wheels: a toolkit may be of nvcc alone."""
    folders = sorted(prefix.glob("lib/python3*/site-packages/nvidia/*/include"))
    return {"CPATH": ":".join(map(str, folders))}


def _jobs(title: str, gib: int) -> int:
    """How many compilers fit into the memory."""
    free = host.available_memory()
    if free < gib * GIB:
        raise Unsolvable(
            f"{title} has no wheel and must be compiled, for which one compiler takes {gib} GiB: "
            f"{free / GIB:.1f} GiB of memory are free. MAX_JOBS=1 tries it anyway."
        )
    return min(free // (gib * GIB), host.usable_cpus())


def _nvcc(title: str, requested: bool | str, cuda: str) -> Path:
    """The compiler of a CUDA version, preferred over one of another minor version."""
    # As torch looks for it (torch/utils/cpp_extension.py: _find_cuda_home), and where NVIDIA's
    # installers put further ones.
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [Path(home or "", "bin", "nvcc")]
    if not home:
        candidates = [Path(shutil.which("nvcc") or "nvcc")]
        candidates += sorted(TOOLKITS.glob("cuda*/bin/nvcc"))
    by_version: dict[str, Path] = {}
    for nvcc in filter(Path.is_file, candidates):
        match = _CUDA_OF_NVCC.search(run([nvcc, "--version"], check=False).stdout)
        by_version.setdefault(match[1] if match else "unknown version", nvcc)
    # torch refuses to compile for another major version, and warns of another minor one
    # (torch/utils/cpp_extension.py: _check_cuda_version).
    target = requested if isinstance(requested, str) else cuda
    major = cuda.partition(".")[0]
    for version, nvcc in sorted(by_version.items(), key=lambda item: item[0] != target):
        if version == target or (requested is True and version.partition(".")[0] == major):
            return nvcc
    unsuitable = ", ".join(f"{nvcc} is of CUDA {version}" for version, nvcc in by_version.items())
    missing = "there is none on PATH or in /usr/local/cuda*"
    if home:
        missing = f"{home}, which CUDA_HOME or CUDA_PATH names, has none"
    raise ToolMissing(
        f"{title} has no wheel and must be compiled with nvcc of CUDA {target}: {unsuitable or missing}."
    )


def _architectures(resolution: Resolution) -> str:
    """For the GPUs of the request, else for all that torch is built for: not for those of the machine
    that happens to lock."""
    named = [catalog.find_gpu(name).architecture for name in resolution.spec.gpu]
    numbers = [_SM.sub(r"\1.\2", name) for name in named or resolution.architectures]
    return ";".join(dict.fromkeys(numbers)) + ("" if named else "+PTX")


def _compile(title: str, compiler: str, *options: str) -> str:
    """What a compiler printed about a trial. Raises ToolMissing unless it succeeds."""
    with temporary_directory("compiler") as folder:
        source = folder / "trial.cu"
        source.write_text("#include <optional>\nint trial() { return 0; }\n")
        command = [compiler, *options, "-std=c++17", "-c", str(source), "-o", f"{source}.o"]
        try:
            trial = run(command, check=False)
            output = trial.stdout + trial.stderr
            if trial.returncode == 0:
                return output
        except ToolMissing as error:
            output = f"error: {error.message}"
    reason = _ERROR.search(output)
    raise ToolMissing(
        f"{title} has no wheel and must be compiled, and `{compiler}` compiles nothing here: "
        f"{reason[0].strip() if reason else output[-200:]}"
    )
