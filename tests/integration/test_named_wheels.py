"""The wheels that a request names are as new as everything requested allows: on an index of a few
tiny packages, with conda's real records."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.conftest import SHARED_RECORDS
from tests.integration.conftest import NO_INDEXES, Home, make_home
from tests.small import write_wheel

# Name -> version -> (requirements, day of its upload). As on the package index: each release of a
# server requires one release of torch, an early one does not; setuptools has an upper bound.
# Each release of torch with the NCCL that it is pinned with.
NCCL = {"2.9.1": "2.27.5", "2.13.0": "2.29.7", "2.14.0": "2.30.7", "2.14.1": "2.30.7"}
PACKAGES: Mapping[str, Mapping[str, tuple[tuple[str, ...], str]]] = {
    "torch": {
        torch: ((f"nvidia-nccl-cu13=={nccl}",), "2026-09-01") for torch, nccl in NCCL.items()
    },
    "numpy": {
        "1.26.4": ((), "2024-01-01"),
        "2.3.5": ((), "2025-11-01"),
        "2.4.0": ((), "2026-01-01"),
    },
    "setuptools": {"80.10.2": ((), "2025-05-01"), "84.0.0": ((), "2026-06-01")},
    "server": {
        "0.2.5": (("torch>=2.1",), "2023-11-01"),
        "0.32.0": (("torch==2.13.0", "setuptools<81"), "2026-10-01"),
        "0.33.0": (("torch==2.14.0", "setuptools<81", "numpy<2.4"), "2026-11-01"),
    },
    # Of 2.9.1 only PyTorch's own index has a build for CUDA 13.0, and it is not configured.
    "engine": {
        "1.0": (("torch>=2.1",), "2026-06-01"),
        "2.0": (("torch==2.9.1",), "2026-07-01"),
    },
    "nvidia_nccl_cu13": dict.fromkeys(NCCL.values(), ((), "2026-01-01")),
    "modern": {"1.0": ((), "2026-01-01")},  # for Python 3.12
    "xxhash": {"3.5.0": ((), "2026-01-01")},
    "legacy": {"1.0": (("numpy<2",), "2026-01-01")},
    # uv reads what a package requires in this order, and would choose the newest helper first.
    "suite": {"1.0": (("helper", "torch"), "2026-01-01")},
    "helper": {
        "1.0": (("torch",), "2026-01-01"),
        "2.0": (("torch==2.13.0",), "2026-02-01"),
    },
    "first": {"1.0": (("second<2",), "2026-01-01")},
    "second": {"1.0": ((), "2026-01-01"), "2.0": (("torch",), "2026-02-01")},
    # 2.0 needs glibc 2.34.
    "modern_glibc": {"1.0": ((), "2026-01-01"), "2.0": (("torch>=2.13",), "2026-02-01")},
}
OPTIONS = ("--cuda", "13.0", "--no-companions", "--no-jupyter")


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 - the base class has it so
        ".json": "application/vnd.pypi.simple.v1+json",
        "": "application/octet-stream",
    }

    def do_GET(self) -> None:
        if self.path.endswith("/"):
            self.path += "index.json"
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def publish(folder: Path) -> None:
    """Write the index in its form of JSON (PEP 691), and the files."""
    for name, releases in PACKAGES.items():
        files = []
        page = folder / name.replace("_", "-")
        for version, (requires, day) in releases.items():
            wheel = write_wheel(page, name, version, requires)
            if name == "modern":
                wheel = wheel.rename(page / wheel.name.replace("py3-none", "cp312-none"))
            if (name, version) == ("modern_glibc", "2.0"):
                tags = "py3-none-manylinux_2_34_x86_64"
                wheel = wheel.rename(page / wheel.name.replace("py3-none-any", tags))
            files.append(_file(wheel, day))
        if name == "legacy":  # wheel variants are in no lock, and their files break nothing
            variant = write_wheel(page, name, "2.0", ())
            variant = variant.rename(page / variant.name.replace(".whl", "-cu130.whl"))
            (page / "legacy-2.0-variants.json").write_text("{}")
            files += [_file(variant, day), _file(page / "legacy-2.0-variants.json", day)]
        _write_page(page, files)
    archive = _source_archive(folder / "archived", "archived", "1.0")
    _write_page(folder / "archived", [_file(archive, "2026-01-01")])


def _file(path: Path, day: str) -> dict[str, object]:
    return {
        "filename": path.name,
        "url": path.name,
        "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        "upload-time": f"{day}T00:00:00Z",
    }


def _write_page(folder: Path, files: list[dict[str, object]]) -> None:
    page = {"meta": {"api-version": "1.1"}, "name": folder.name, "files": files}
    (folder / "index.json").write_text(json.dumps(page))


def _source_archive(folder: Path, name: str, version: str) -> Path:
    """Of a project whose build back end is its own, so that its build needs nothing."""
    root = folder / f"{name}-{version}"
    root.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
    (root / "PKG-INFO").write_text(metadata)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    )
    (root / "backend.py").write_text(
        "import os, pathlib, zipfile\n"
        "answer = os.environ.get('ANSWER', '42')\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        f"    file = '{name}-{version}-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(pathlib.Path(folder) / file, 'w') as wheel:\n"
        f"        wheel.writestr('{name}.py', 'answer = ' + answer)\n"
        f"        wheel.writestr('{name}-{version}.dist-info/METADATA', {metadata!r})\n"
        f"        wheel.writestr('{name}-{version}.dist-info/WHEEL', 'Wheel-Version: 1.0\\n'\n"
        "            'Generator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        f"        wheel.writestr('{name}-{version}.dist-info/RECORD', '')\n"
        "    return file\n"
    )
    archive = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root, root.name)
    return archive


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("index")
    publish(folder)
    home = make_home(tmp_path_factory.mktemp("lab"))
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = {
            "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}",
            **NO_INDEXES,
            "UV_CACHE_DIR": str(home.root / "uv"),
            "PROVISION_MIRRORS": f"*={SHARED_RECORDS.as_uri()}",
        }
        yield Home(root=home.root, env={**home.env, **settings})
        server.shutdown()


def lock(lab: Home, name: str, *options: str) -> tuple[dict[str, str], str]:
    """The locked versions of wheels and conda packages, and what was said."""
    result = lab.run("lock", name, *OPTIONS, *options)
    assert result.returncode == 0, result.stderr
    document = yaml.safe_load((lab.envs / name / "conda-lock.yml").read_text())
    return {row["name"]: row["version"] for row in document["package"]}, result.stderr


@pytest.mark.exhaustive
@pytest.mark.conda
def test_condas_packages_do_not_hold_named_wheels_back(lab: Home) -> None:
    versions, _ = lock(lab, "fixed", "--torch", "2.14.0", "--pip", "server")
    assert versions["server"] == "0.33.0"
    assert int(versions["setuptools"].split(".")[0]) < 81


@pytest.mark.conda
@pytest.mark.parametrize("torch", [">=2.13", "2.14", ">=2.13,<2.15"])
def test_named_wheels_decide_an_open_release_of_torch(lab: Home, torch: str) -> None:
    name = re.sub(r"\W", "", f"open{torch}")
    versions, said = lock(lab, name, "--torch", torch, "--pip", "server")
    assert (versions["server"], versions["torch"]) == ("0.33.0", "2.14.0")
    assert "torch 2.14.0, not 2.1" in said
    again = lab.run("lock", name)
    assert again.returncode == 0 and "already locked" in again.stdout, again.stderr


@pytest.mark.exhaustive
@pytest.mark.conda
def test_a_release_that_no_index_has_decides_nothing(lab: Home) -> None:
    versions, said = lock(lab, "engine", "--torch", ">=2.9", "--pip", "engine")
    assert (versions["engine"], versions["torch"]) == ("1.0", "2.14.1")
    assert "engine 1.0; 2.0 needs torch 2.9.1, and no index that is configured has" in said


@pytest.mark.conda
@pytest.mark.parametrize("more", [(), ("--pip", "first")])
def test_a_range_means_a_release_that_an_index_has(lab: Home, more: tuple[str, ...]) -> None:
    versions, said = lock(lab, f"range{len(more)}", "--torch", ">=2.9", *more)
    assert versions["torch"] == "2.14.1"
    assert "torch 2.14.1, not 2.15.0: no index that is configured has torch 2.15.0+cu130" in said
    again = lab.run("lock", f"range{len(more)}")
    assert again.returncode == 0 and "already locked" in again.stdout, again.stderr


@pytest.mark.conda
def test_torch_is_newer_before_what_nobody_named(lab: Home) -> None:
    versions, said = lock(lab, "suite", "--torch", ">=2.13,<2.15", "--pip", "suite")
    assert (versions["torch"], versions["helper"]) == ("2.14.1", "1.0"), said


@pytest.mark.conda
def test_auto_means_a_cuda_of_which_an_index_has_the_build(lab: Home) -> None:
    """The newest CUDA of 2.14.0 is 13.2, and only PyTorch's own index has that build."""
    words = ("--torch", ">=2.13", "--gpu", "H100", *OPTIONS[2:], "--pip", "server")
    result = lab.run("lock", "auto", *words)
    assert result.returncode == 0, result.stderr
    assert (
        "CUDA 13.0, not 13.2: no index that is configured has torch 2.14.0+cu132" in result.stderr
    )
    text = (lab.envs / "auto" / "conda-lock.yml").read_text()
    assert re.search(r"name: server\n.*version: 0\.33\.0", text)
    assert 'cuda: "13.0"' in (lab.envs / "auto" / "spec.yml").read_text()
    # The lock decides where a user's own spec.yml keeps `auto`.
    stays_locked(lab, "own-auto", "torch: 2.14.0\ncuda: auto\ngpu: [H100]\n")


@pytest.mark.exhaustive
@pytest.mark.conda
def test_a_spec_of_a_user_stays_locked(lab: Home) -> None:
    """The range stays in a spec.yml that is not ours to rewrite; the lock decides from then on."""
    stays_locked(lab, "own", 'torch: ">=2.13"\ncuda: "13.0"\npip: [server]\n')


def stays_locked(lab: Home, name: str, request: str) -> None:
    """A user's own spec.yml is locked once."""
    folder = lab.envs / name
    folder.mkdir(parents=True)
    extras = "companions: false\njupyter: false\nfast_checkpoints: false\n"
    (folder / "spec.yml").write_text(request + extras)
    for expected in ("locked:", "already locked"):
        result = lab.run("lock", name)
        assert result.returncode == 0 and expected in result.stdout, result.stderr


@pytest.mark.exhaustive
@pytest.mark.conda
def test_a_python_that_was_not_requested_gives_way(lab: Home) -> None:
    options = ("--torch", "2.14.0", "--pip", "modern")
    _, said = lock(lab, "modern", *options)
    assert "Python 3.12: for 3.11 the wheels do not exist" in said
    assert 'python: "3.12"' in (lab.envs / "modern" / "spec.yml").read_text()
    refused = lab.run("lock", "modern311", *OPTIONS, *options, "--python", "3.11")
    assert refused.returncode == 5 and "modern" in refused.stderr


def test_a_python_that_only_the_wheels_need_is_said_so(lab: Home) -> None:
    """Nobody requested it, and this machine's Python is another one."""
    options = ("--torch", "2.14.0", "--pip", "modern", "--python-from", "host")
    refused = lab.run("lock", "modern-host", *OPTIONS, *options)
    assert refused.returncode == 9, refused.stderr
    assert "error: `modern` needs Python 3.12, but" in refused.stderr


@pytest.mark.exhaustive
def test_an_index_that_does_not_respond_is_said(lab: Home) -> None:
    words = ("render", "silent", *OPTIONS, "--torch", ">=2.13", "--pip", "server")
    result = lab.run(*words, PIP_INDEX_URL="http://127.0.0.1:9", UV_CACHE_DIR=f"{lab.root}/empty")
    assert result.returncode == 0
    assert "may not be what the named wheels go with" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.conda
def test_an_added_wheel_is_not_held_back_by_what_is_locked(lab: Home) -> None:
    versions, _ = lock(lab, "grown", "--torch", "2.14.0")
    assert versions["numpy"] == "2.4.0"
    result = lab.run("add", "grown", "server")
    assert result.returncode == 0, result.stderr
    document = yaml.safe_load((lab.envs / "grown" / "conda-lock.yml").read_text())
    versions = {row["name"]: row["version"] for row in document["package"]}
    assert (versions["server"], versions["numpy"]) == ("0.33.0", "2.3.5")


@pytest.mark.conda
def test_a_wheel_is_added_without_a_channel(lab: Home) -> None:
    versions, _ = lock(lab, "offline", "--torch", "2.14.0")
    result = lab.run("add", "offline", "legacy", PROVISION_MIRRORS="*=http://127.0.0.1:9")
    assert result.returncode == 0, result.stderr
    document = yaml.safe_load((lab.envs / "offline" / "conda-lock.yml").read_text())
    changed = {row["name"]: row["version"] for row in document["package"]}
    assert changed == {**versions, "legacy": "1.0", "numpy": "1.26.4"}


@pytest.mark.conda
def test_what_was_given_up_is_said(lab: Home) -> None:
    _, said = lock(lab, "given-up", "--torch", "2.13.0", "--pip", "server")
    assert "server 0.32.0; 0.33.0 needs torch 2.14.0 (`--torch 2.14.0` gives it)" in said
    assert "old-release" not in said
    _, said = lock(lab, "old", "--torch", "2.14.1", "--pip", "server")
    assert "warning: old-release: server 0.2.5; 0.33.0 needs torch 2.14.0" in said
    with (lab.envs / "old" / "spec.yml").open("a") as file:
        file.write("accept: [old-release]\n")
    accepted = lab.run("lock", "old", "--relock")
    assert accepted.returncode == 0 and "old-release" not in accepted.stderr, accepted.stderr


@pytest.mark.conda
def test_the_reason_for_an_older_release_is_the_true_one(lab: Home) -> None:
    """Neither names a release of torch, though the newest would have another one."""
    names = ("--pip", "first", "--pip", "second", "--pip", "modern-glibc")
    _, said = lock(lab, "reasons", "--torch", "2.13.0", *names)
    assert "second 1.0; 2.0 does not go with the rest of the request" in said
    assert "modern-glibc 1.0; 2.0 needs glibc 2.34 (`--glibc 2.34` gives it)" in said
    versions, _ = lock(
        lab, "glibc", "--torch", "2.13.0", "--glibc", "2.34", "--pip", "modern-glibc"
    )
    assert versions["modern-glibc"] == "2.0"


@pytest.mark.exhaustive
@pytest.mark.conda
@pytest.mark.parametrize("setting", ["UV_INDEX", "PIP_FIND_LINKS"])
def test_older_releases_on_disk_are_said(lab: Home, tmp_path: Path, setting: str) -> None:
    folder = tmp_path / "ancient"
    write_wheel(folder, "ancient", "1.0", ())
    write_wheel(folder, "ancient", "2.0", ("numpy>=99",))
    names = sorted(path.name for path in folder.iterdir())
    (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names))
    value = tmp_path.as_uri() if setting == "UV_INDEX" else str(folder)
    lab = Home(root=lab.root, env={**lab.env, setting: value})
    words = ("--torch", "2.14.1", "--pip", "ancient")
    result = lab.run("lock", f"disk-{setting.lower()}", *OPTIONS, *words)
    assert result.returncode == 0 and "ancient 1.0; 2.0 has" in result.stderr, result.stderr


@pytest.mark.exhaustive
@pytest.mark.conda
def test_a_conda_package_without_a_version_gives_way(lab: Home) -> None:
    versions, _ = lock(lab, "numpy", "--torch", "2.14.1", "--pip", "legacy", "--conda", "numpy")
    assert versions["numpy"].startswith("1.") and versions["legacy"] == "1.0"


@pytest.mark.conda
def test_a_package_without_a_wheel_is_built_once(lab: Home) -> None:
    lock(lab, "built", "--torch", "2.14.1", "--pip", "archived")
    folder = lab.envs / "built"
    wheel = folder / "wheels" / "archived-1.0-py3-none-any.whl"
    text = (folder / "conda-lock.yml").read_text()
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in text
    assert "url: file:wheels/archived-1.0-py3-none-any.whl" in text
    before = wheel.stat().st_mtime_ns
    result = lab.run("lock", "built", "--relock")
    assert "no package differs" in result.stderr, result.stderr
    assert wheel.stat().st_mtime_ns == before


@pytest.mark.conda
def test_a_wheel_of_the_same_name_is_not_taken_for_this_build(lab: Home) -> None:
    """It may be for another torch: only the bytes that the lock names count."""
    lock(lab, "again", "--torch", "2.14.1", "--pip", "archived")
    wheel = lab.envs / "again" / "wheels" / "archived-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(b"of another build")
    result = lab.run("lock", "again", "--relock")
    assert result.returncode == 0, result.stderr
    assert wheel.read_bytes() == whole


@pytest.mark.conda
def test_a_lock_that_fails_leaves_no_wheel(lab: Home) -> None:
    options = ("--torch", "2.14.1", "--pip", "archived", "--pip", "archived-missing")
    result = lab.run("lock", "failed", *OPTIONS, *options)
    assert result.returncode == 5, result.stderr
    assert not (lab.envs / "failed").exists()


@pytest.mark.exhaustive
@pytest.mark.conda
def test_a_build_is_as_spec_yml_says(lab: Home) -> None:
    """Its settings are part of the request; its wheel goes with the request for it."""
    folder = lab.envs / "settings"
    folder.mkdir(parents=True)
    lines = 'torch: "2.14.1"\ncuda: "13.0"\ncompanions: false\njupyter: false\n'
    lines += "fast_checkpoints: false\n"
    (folder / "wheels").mkdir()
    (folder / "wheels" / "own-1-py3-none-any.whl").write_bytes(b"of the user")
    for answer in ("7", "8"):
        build = f"build: {{Archived: {{env: {{ANSWER: {answer}}}}}, mistyped: {{}}}}\n"
        (folder / "spec.yml").write_text(f"{lines}pip: [archived]\n{build}")
        if answer == "8":
            stale = lab.run("lock", "settings")
            assert (
                stale.returncode == 6 and "the request changed since it was locked" in stale.stderr
            )
        result = lab.run("lock", "settings", "--relock")
        assert result.returncode == 0, result.stderr
        assert "`build` in spec.yml has no effect on mistyped" in result.stderr
        with zipfile.ZipFile(folder / "wheels" / "archived-1.0-py3-none-any.whl") as wheel:
            assert wheel.read("archived.py").decode() == f"answer = {answer}"
        verified = lab.run("lock", "verify", "--offline", "settings")
        assert verified.returncode == 0, verified.stdout
    (folder / "spec.yml").write_text(lines)
    assert lab.run("lock", "settings", "--relock").returncode == 0
    assert [path.name for path in (folder / "wheels").iterdir()] == ["own-1-py3-none-any.whl"]


@pytest.mark.exhaustive
@pytest.mark.conda
def test_what_is_added_by_default_gives_way(lab: Home) -> None:
    """The index has no ipykernel."""
    options = [option for option in OPTIONS if option != "--no-jupyter"]
    options += ["--torch", "2.14.1", "--pip", "legacy"]
    result = lab.run("lock", "default", *options)
    assert result.returncode == 0 and "left out ipykernel" in result.stderr, result.stderr
    assert "jupyter: false" in (lab.envs / "default" / "spec.yml").read_text()
    refused = lab.run("lock", "stated", *options, "--jupyter")
    assert refused.returncode == 5 and "ipykernel" in refused.stderr


@pytest.mark.conda
def test_the_indexs_apex_is_refused(lab: Home) -> None:
    result = lab.run("lock", "apex", *OPTIONS, "--torch", "2.14.1", "--pip", "apex")
    assert result.returncode == 3 and "Pyramid" in result.stderr, result.stderr
