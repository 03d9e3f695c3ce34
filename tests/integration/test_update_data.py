"""Refreshing the data from real wheels and from an index served by the test."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.catalog import DATA

ROOT = Path(__file__).parent.parent.parent
PROVABLE = [
    ("index_default",),
    ("wheels", "cu132", "architectures"),
    ("torchaudio", "version"),
    ("torchaudio", "pins_torch"),
    ("torchvision", "version"),
    ("torchvision", "pins_torch"),
    ("triton",),
    ("wheels", "cu132", "cuda"),
    ("wheels", "cu132", "on_pypi"),
    ("wheels", "cu132", "nccl"),
    ("wheels", "cu132", "cudnn"),
]


def refresh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "update_data", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), **environment},
    )


def at(release: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = release
    for key in path:
        value = value[key]
    return value


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data, with a few releases: reading and writing all of them takes seconds."""
    head, *releases = re.split(r'^(?="\d)', (DATA / "releases.yml").read_text(), flags=re.MULTILINE)
    entries = [
        release for release in releases if release.startswith(('"2.3.1"', '"2.4.0"', '"2.15.0"'))
    ]
    (tmp_path / "releases.yml").write_text(head + "".join(entries))
    return tmp_path


@pytest.mark.index
def test_missing_release_is_reported(data: Path) -> None:
    table = data / "releases.yml"
    whole = table.read_text()
    release = yaml.safe_load(whole)["2.15.0"]
    table.write_text(whole[: whole.index('"2.15.0":')])
    completed = refresh("--data", str(data), "--release", "2.15.0", "--architectures", "--write")
    assert completed.returncode == 0, completed.stderr
    assert "new: 2.15.0 wheels cu132 nccl: version 2.30.7" in completed.stdout
    assert "new: 2.15.0 wheels cu132 cudnn: version 9.26.0.51" in completed.stdout
    assert "toolkit 13.2.2" in completed.stdout
    assert "+++ b/provision/catalog/data/releases.yml" in completed.stdout
    result = yaml.safe_load(table.read_text())["2.15.0"]
    for path in PROVABLE:
        assert at(result, path) == at(release, path), path
    assert table.read_text().startswith(whole[: whole.index('"2.15.0":')])


# An index without ranged reads, whose metadata lie beside the wheels (PEP 658).

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}\n"
WHEELS = {
    "torch-9.9.0-cp313-cp313-manylinux_2_28_x86_64.whl": [
        'cuda-toolkit[cudart]==14.1.3; platform_system == "Linux"',
        'nvidia-nccl-cu14==3.1.4; platform_system == "Linux"',
        'nvidia-cudnn-cu14==10.0.0.1; platform_system == "Linux"',
    ],
    "torch-2.3.1-cp311-cp311-manylinux1_x86_64.whl": [
        "nvidia-cuda-runtime-cu12==12.1.105",
        "nvidia-nccl-cu12==2.99.9",
    ],
    "torchvision-0.99.0-py3-none-manylinux_2_28_x86_64.whl": ["torch==9.9.0"],
}
OWN = {
    "torch-2.3.1+cu118-cp311-cp311-linux_x86_64.whl": [
        "nvidia-cuda-runtime-cu11==11.8.89",
        "nvidia-nccl-cu11==2.20.5",
    ]
}


def serve(folder: Path, wheels: dict[str, list[str]]) -> None:
    for name, requirements in wheels.items():
        project, version = name.split("-")[:2]
        place = folder / project
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"not read")
        lines = "\n".join(f"Requires-Dist: {requirement}" for requirement in requirements)
        (place / f"{name}.metadata").write_text(
            METADATA.format(name=project, version=version, requirements=lines)
        )
        with (place / "index.html").open("a") as page:
            page.write(f'<a href="{name}" data-core-metadata="true">{name}</a>\n')


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    serve(folder / "simple", WHEELS)
    serve(folder / "own" / "cu118", OWN)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_newer_releases_conflicts_and_unproven_facts(data: Path, served: str) -> None:
    before = yaml.safe_load((data / "releases.yml").read_text())
    result = refresh(
        "--data",
        str(data),
        "--index",
        f"{served}/simple/",
        "--write",
        "--check",
        PROVISION_TORCH_INDEX=f"{served}/own",
    )
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.startswith("# new: 9.9.0 wheels cu141 nccl: version 3.1.4") for line in lines)
    assert any(
        "changed: 2.3.1 wheels cu121 nccl: version 2.20.5 -> 2.99.9" in line for line in lines
    )
    assert any(
        "no longer proven by the index, left as it is: 2.15.0 index_default linux-64" in line
        for line in lines
    )
    assert not [
        line for line in lines if line.startswith("#") and "cu118" in line
    ]  # it says what the table says
    after = yaml.safe_load((data / "releases.yml").read_text())
    assert list(after) == [*before, "9.9.0"]
    assert after["9.9.0"]["index_default"]["linux-64"]["toolkit"] == "14.1.3"
    assert after["9.9.0"]["torchvision"]["version"] == "0.99.0"
    assert after["9.9.0"]["wheels"]["cu141"]["architectures"]["sm"] is None
    assert after["2.15.0"] == before["2.15.0"]


@pytest.mark.exhaustive
def test_wheel_contradicts_a_hand_sourced_fact(data: Path, served: str, tmp_path: Path) -> None:
    serve(
        tmp_path / "served" / "own" / "cu118",
        {"torch-2.4.0+cu118-cp311-cp311-linux_x86_64.whl": ["nvidia-nccl-cu11==2.99.9"]},
    )
    result = refresh(
        "--data",
        str(data),
        "--index",
        f"{served}/simple/",
        "--release",
        "2.4.0",
        PROVISION_TORCH_INDEX=f"{served}/own",
    )
    assert (
        "# CONFLICT, left as it is for a person to decide: 2.4.0 wheels cu118 nccl: version is 2.20.5 by pytorch/builder"
        in result.stdout
    )
    assert "but 2.99.9 by metadata torch==2.4.0+cu118 (PyTorch wheel index)" in result.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--index", "http://127.0.0.1:9/simple/"],
            8,
            "could not be fetched",
        ),
        (["--release", "2.99.0"], 4, "torch 2.99.0 is neither on the index nor in the table"),
    ],
)
def test_errors(data: Path, served: str, arguments: list[str], code: int, message: str) -> None:
    named = arguments if "--index" in arguments else ["--index", f"{served}/simple/", *arguments]
    result = refresh("--data", str(data), *named)
    assert (result.returncode, "Traceback" in result.stderr) == (code, False)
    assert message in result.stderr
