"""What lock exports are for: real installers take them. And verify and diff as commands, with their exit codes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.adapters import uv
from tests.faulty import served
from tests.integration.conftest import Home, make_home
from tests.small import WHEELS, write_index, write_wheel

NAME = "lab"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Somebody with a lock of wheels, made by hand, and the index that has them."""
    verb_home = make_home(tmp_path / "home")
    write_index(tmp_path)
    packages = [wheel(tmp_path, name) for name in ("torch", "numpy", "ipykernel")]
    (verb_home.envs / NAME).mkdir(parents=True)
    (verb_home.envs / NAME / "conda-lock.yml").write_text(yaml.safe_dump(lock_of(packages)))
    return verb_home


def lock_of(packages: list[dict[str, Any]]) -> dict[str, Any]:
    metadata = {
        "content_hash": {"linux-64": "a" * 64},
        "channels": [],
        "platforms": ["linux-64"],
        "sources": ["environment.yml"],
    }
    return {"version": 1, "metadata": metadata, "package": packages}


def wheel(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "files" / f"{name}-{WHEELS[name]}-py3-none-any.whl"
    return {
        "name": name,
        "version": WHEELS[name],
        "manager": "pip",
        "platform": "linux-64",
        "dependencies": {"numpy": "*"} if name == "torch" else {},
        "url": path.as_uri(),
        "hash": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        "category": "main",
        "optional": False,
    }


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An empty environment; its interpreter."""
    subprocess.run(
        [uv.uv_executable(), "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"],
        check=True,
    )
    return tmp_path / "venv" / "bin" / "python"


def export(home: Home, kind: str, name: str) -> Path:
    path = home.root / name
    result = home.run("lock", "export", NAME, "--format", kind, "-o", str(path))
    assert result.returncode == 0, result.stderr
    return path


def installed(python: Path) -> set[str]:
    listed = subprocess.run(
        [uv.uv_executable(), "pip", "freeze", "--python", python],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {line.partition("==")[0].partition(" @ ")[0] for line in listed.splitlines()}


@pytest.mark.parametrize(
    "kind,name", [("requirements", "requirements.txt"), ("pylock", "pylock.toml")]
)
def test_uv_installs_what_is_exported(home: Home, environment: Path, kind: str, name: str) -> None:
    path = export(home, kind, name)
    hashes = ["--require-hashes"] if kind == "requirements" else []
    command: list[str | Path] = [
        uv.uv_executable(),
        "pip",
        "install",
        "--no-config",
        "--offline",
        "--no-deps",
        *hashes,
        "--python",
        environment,
        "-r",
        path,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert installed(environment) == {"torch", "numpy", "ipykernel"}


def test_export_reports_omitted_packages(home: Home, tmp_path: Path) -> None:
    path = home.envs / NAME / "conda-lock.yml"
    content = yaml.safe_load(path.read_text())
    content["package"].append(
        {**wheel(tmp_path, "numpy"), "name": "python", "version": "3.11.7", "manager": "conda"}
    )
    path.write_text(yaml.safe_dump(content))
    result = home.run("lock", "export", NAME, "--format", "requirements")
    assert "left out, since pip and uv install no conda packages: python 3.11.7\n" in result.stderr
    assert "python" not in result.stdout
    messages = home.json(
        "lock", "export", NAME, "--format", "pylock", "-o", str(tmp_path / "pylock.toml")
    )
    assert messages["left_out"] == ["python 3.11.7"] and messages["notes"]


def test_pip_accepts_the_hashed_requirements(home: Home, environment: Path, tmp_path: Path) -> None:
    path = export(home, "requirements", "requirements.txt")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "--require-hashes",
    ]
    command += [
        "--find-links",
        str(tmp_path / "files"),
        "--target",
        str(tmp_path / "target"),
        "-r",
        str(path),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    write_wheel(tmp_path / "files", "numpy", WHEELS["numpy"]).write_bytes(b"another file")
    spoiled = subprocess.run(command, capture_output=True, text=True)
    assert spoiled.returncode != 0 and "HASHES" in spoiled.stderr.upper()


def test_verify_says_what_it_could_not_check(home: Home, tmp_path: Path) -> None:
    path = home.envs / NAME / "conda-lock.yml"
    with served(tmp_path) as server:
        path.write_text(path.read_text().replace(tmp_path.as_uri(), server.url))
        sound = home.run("lock", "verify", NAME)
        assert (sound.returncode, sound.stdout) == (0, f"{NAME}: 3 packages, nothing wrong\n"), (
            sound.stderr
        )
        assert "not checked: whether the files are still served" in sound.stderr
    [offline] = home.json("lock", "verify", NAME, "--offline")["locks"]
    assert offline["findings"] == [] and "--offline" in offline["notes"][-1]


def test_versions_that_wheels_need(home: Home, tmp_path: Path) -> None:
    """Read from where the files are: out of the wheel, where a server has nothing beside it."""
    write_wheel(
        tmp_path / "files",
        "torch",
        WHEELS["torch"],
        needs=["numpy<2", "sympy; extra == 'opt'", "ipykernel; sys_platform == 'linux'"],
    )
    python = {**wheel(tmp_path, "numpy"), "name": "python", "version": "3.11.7", "manager": "conda"}
    python |= {
        "url": "https://channel.invalid/one/linux-64/python-3.11.7-h1_0.conda",
        "hash": {"sha256": "a" * 64},
    }
    content = lock_of(
        [wheel(tmp_path, name) for name in ("torch", "numpy", "ipykernel")] + [python]
    )
    path = home.envs / NAME / "conda-lock.yml"
    with served(tmp_path) as server:
        path.write_text(yaml.safe_dump(content).replace(tmp_path.as_uri(), server.url))
        server.fault("ipykernel", "no-range")
        mirror = ("--mirror", f"https://channel.invalid/one={server.url}/none")
        result = home.run("lock", "verify", NAME, *mirror)
        assert server.ranges
    assert result.returncode == 1
    assert f"{NAME}: linux-64 torch needs numpy<2, and numpy is 2.4.0\n" in result.stdout
    assert (
        "these wheels require: ipykernel: the server does not support range requests\n"
        in result.stderr
    )
    offline = home.run("lock", "verify", NAME, "--offline")
    assert (
        "numpy is 2.4.0" not in offline.stdout
        and "not checked: which versions wheels require" in offline.stderr
    )


def test_a_removed_verb_names_what_does_the_same(home: Home) -> None:
    result = home.run("lock", "diff", NAME, "new.yml")
    assert result.returncode == 2
    assert "`git diff` compares locks" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("verify", "none"), ("export", "none", "--format", "pylock")],
)
def test_missing_lock(home: Home, arguments: tuple[str, ...]) -> None:
    result = home.run("lock", *arguments)
    assert result.returncode == 3
    assert "There is no" in result.stderr and "Traceback" not in result.stderr
