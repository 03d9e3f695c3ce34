"""An environment's files, divided into the layers of its image as the Dockerfile does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from provision_runtime.node import image_layers

SITE = "lib/python3.11/site-packages"
GROUPS = (
    {"name": "cuda", "conda": ["cudnn"], "wheels": ["nvidia-*"], "at_least": 0},
    {"name": "large", "conda": [], "wheels": ["*"], "at_least": 1000},
    {"name": "rest", "conda": [], "wheels": ["*"], "at_least": 0},
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def conda_package(prefix: Path, name: str, *files: str) -> None:
    for file in files:
        write(prefix / file, name)
    record = {"name": name, "files": list(files)}
    write(prefix / f"conda-meta/{name}-1-0.json", json.dumps(record))


def wheel(prefix: Path, name: str, files: dict[str, str]) -> None:
    information = f"{name}-1.dist-info"
    files = {**files, f"{information}/RECORD": ""}
    for file, text in files.items():
        write(prefix / SITE / file, text)
    rows = "".join(f"{file},,\n" for file in files)
    write(prefix / SITE / information / "RECORD", rows)


def test_each_file_is_in_one_layer(tmp_path: Path) -> None:
    prefix, layers = tmp_path / "env", tmp_path / "layers"
    conda_package(prefix, "python", "bin/python3.11", "lib/libpython.so")
    (prefix / "bin/python").symlink_to("python3.11")
    conda_package(prefix, "cudnn", "lib/libcudnn.so", "lib/gone.so")
    (prefix / "lib/gone.so").unlink()  # another package's, or removed by hand
    shared = {"nvidia/__init__.py": ""}
    wheel(prefix, "nvidia_nccl_cu12", {**shared, "nvidia/nccl/lib.so": "x"})
    wheel(prefix, "nvidia_cublas_cu12", {**shared, "nvidia/cublas/lib.so": "x"})
    wheel(prefix, "numpy", {"numpy/core.so": "x" * 1000, "../../../bin/f2py": "#!/opt/env"})
    wheel(prefix, "einops", {"einops.py": "", "../../../../outside.txt": ""})
    conda_package(prefix, "pip", f"{SITE}/pip.py", f"{SITE}/pip-1.dist-info/RECORD")
    wheel(prefix, "pip", {"pip.py": ""})  # as conda's own package has it

    command = [sys.executable, "-I", image_layers.__file__, str(prefix), str(layers)]
    subprocess.run([*command, *map(json.dumps, GROUPS)], check=True)

    divided: dict[str, str] = {}
    for path in layers.rglob("*"):
        if not path.is_dir():
            group, _, file = path.relative_to(layers).as_posix().partition("/")
            assert divided.setdefault(file, group) == group
    assert not prefix.exists() and (tmp_path / "outside.txt").exists()
    expected = {
        "bin/python": "python",
        "conda-meta/python-1-0.json": "python",
        "lib/libcudnn.so": "cuda",
        "conda-meta/cudnn-1-0.json": "cuda",
        f"{SITE}/nvidia/__init__.py": "cuda",
        f"{SITE}/nvidia/nccl/lib.so": "cuda",
        f"{SITE}/numpy/core.so": "large",
        "bin/f2py": "large",
        f"{SITE}/einops-1.dist-info/RECORD": "rest",
        f"{SITE}/pip.py": "python",
    }
    assert {file: divided[file] for file in expected} == expected
