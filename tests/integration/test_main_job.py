"""The main job on real input: real wheels, this machine's Python, two Gloo ranks, a Jupyter kernel, and a Docker image."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from provision.environment import marker, runtime_package
from provision_runtime import __version__
from tests.integration.conftest import MAIN, MAIN_REQUEST, Home, on_terminal
from tests.integration.test_docs_examples import first_example, run_ranks
from tests.results import parse_result

pytestmark = pytest.mark.index


def test_build_outputs(
    home: Home, main_build: subprocess.CompletedProcess[str], main_prefix: Path
) -> None:
    folder = home.envs / MAIN
    files = {
        "spec.yml",
        "environment.yml",
        "virtual-packages.yml",
        "conda-lock.yml",
        "Dockerfile",
    }
    assert {path.name for path in folder.iterdir()} == files
    assert "next:" in main_build.stdout and str(main_prefix) in main_build.stdout
    assert not [path for path in main_prefix.parent.iterdir() if path.name.startswith(".")]


def test_nobody_else_may_write_to_what_a_build_made(home: Home, main_build: object) -> None:
    """The build ran with umask 000. Conda packages are in a folder that nobody else may enter."""
    private = home.root / "cache" / "conda-packages"
    assert private.stat().st_mode & 0o777 == 0o700
    writable = []
    for top in (home.root / "data", home.root / "jupyter", home.root / "cache", home.envs):
        for folder, folders, names in os.walk(top):
            if Path(folder) == private:
                folders.clear()
                continue
            for name in (*folders, *names):
                mode = os.lstat(f"{folder}/{name}").st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                    writable.append(f"{folder}/{name}")
    assert writable == []


def test_pip_says_how_to_add_a_package(main_prefix: Path, main_build: object) -> None:
    """PEP 668: what pip added by itself would be lost with the next build."""
    command = [str(main_prefix / "bin" / "python"), "-m", "pip", "install", "--no-index", "einops"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"provision add {MAIN} PACKAGE" in result.stderr


def test_prefix_has_the_requested_torch(main_prefix: Path, main_build: object) -> None:
    script = "import torch, sys; print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version(), sys.prefix, sep='\\n')"
    result = subprocess.run(
        [main_prefix / "bin" / "python", "-I", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == ["2.3.1+cu121", "12.1", "(2, 20, 5)", str(main_prefix)]


def test_companions_are_installed(main_prefix: Path, main_build: object) -> None:
    """What starts it for Jupyter, the library of training code, and what makes that library's checkpoints fast."""
    script = "import ipykernel; from provision_runtime.checkpoint import hashes; print(hashes.XXH3_128().hexdigest())"
    command: list[str | Path] = [main_prefix / "bin" / "python", "-I", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        result.stdout == "99aa06d3014798d86001c324468d497f\n"
    )  # of nothing (xxHash's specification)


def test_lock_hashes_everything_and_conda_lock_reads_it(
    home: Home, main_build: object, tmp_path: Path
) -> None:
    path = home.envs / MAIN / "conda-lock.yml"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # conda-lock's own, of its copies of other projects
        from conda_lock.lockfile import parse_conda_lock_file

        parsed = parse_conda_lock_file(path)
    assert {package.manager for package in parsed.package} == {"conda", "pip"}
    assert all(package.hash.sha256 for package in parsed.package)
    assert yaml.safe_load(path.read_text())["version"] == 1
    tool = Path(sys.executable).parent / "conda-lock"
    subprocess.run(
        [tool, "render", "-k", "explicit", "-p", "linux-64", path],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert "@EXPLICIT" in (tmp_path / "conda-linux-64.lock").read_text()


def test_second_build_writes_nothing(home: Home, main_build: object) -> None:
    def state() -> dict[Path, int]:
        return {
            path: path.lstat().st_mtime_ns
            for path in home.root.rglob("*")
            if "__pycache__" not in path.parts
        }

    before = state()
    result = home.run("build", *MAIN_REQUEST, "--no-image", "--no-smoke")
    assert result.returncode == 0, result.stderr
    assert "nothing changed\n" in result.stdout
    assert "made" not in result.stdout
    assert state() == before


def test_spec_without_options_builds_the_same(home: Home, main_build: object) -> None:
    result = home.run("build", MAIN, "--no-image", "--no-smoke")
    assert result.returncode == 0, result.stderr
    assert "made" not in result.stdout


def test_passport_describes_the_build(home: Home, main_build: object, main_prefix: Path) -> None:
    passport = json.loads((home.project / "passports" / MAIN / "passport.json").read_text())
    printed = sorted(warning["what"] for warning in passport["warnings"])
    marked = marker.read(main_prefix)
    assert marked and printed and sorted(marked.warnings) == printed
    assert passport["request"] == {
        "torch": "2.3",
        "cuda": "12.1",
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "smoke": ["profile=quick"],
    }
    assert passport["prefix"]["path"] == str(main_prefix)
    assert (passport["lock"]["python_from"], passport["lock"]["portable"]) == ("host", False)
    assert passport["smoke"]["prefix"]["verdict"] == "pass"
    installed = runtime_package.installed(main_prefix)
    assert installed is not None
    assert passport["runtime"] == {
        "name": "provision_runtime",
        "version": __version__,
        "sha256": installed.sha256,
    }
    result = home.run("passport", "show", MAIN)
    assert result.returncode == 0
    assert "  pass     checkpoint" in result.stdout


@pytest.mark.exhaustive
def test_changed_file_is_drift(home: Home, main_build: object, main_prefix: Path) -> None:
    """Reads all 5 GB. In CI the main command does, and test_change.py with tiny wheels."""
    victim = next(main_prefix.glob("lib/python*/site-packages/sympy/__init__.py"))
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content + b"\n# edited\n")
    try:
        result = home.run("env", "diff", MAIN, "--deep")
        assert (result.returncode, result.stdout.split()[:2]) == (1, ["changed", "sympy:"])
    finally:
        victim.write_bytes(content)


@pytest.mark.exhaustive
def test_lost_runtime_package_is_restored_in_place(
    home: Home, main_build: object, main_prefix: Path
) -> None:
    site = runtime_package.site_packages(main_prefix)
    torch = (site / "torch" / "__init__.py").stat()
    (info,) = site.glob("provision_runtime-*.dist-info")
    shutil.rmtree(info)
    result = home.run("env", "diff", MAIN)
    assert (result.returncode, result.stdout.split()[:2]) == (1, ["missing", "provision-runtime:"])
    assert not info.exists()  # env diff only looks
    added = home.run("kernel", "add", MAIN)
    assert added.returncode == 0, added.stderr
    assert info.exists()
    assert home.run("env", "diff", MAIN).returncode == 0
    assert (site / "torch" / "__init__.py").stat() == torch


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["checkpoints", "training"])
def test_first_docs_example_runs_in_the_prefix(
    main_build: object, main_prefix: Path, tmp_path: Path, page: str
) -> None:
    """In CI test_docs_examples.py runs both."""
    assert run_ranks(main_prefix / "bin" / "python", tmp_path, first_example(page))


def test_kernel_starts_and_sees_exactly_this_prefix(
    home: Home, main_build: object, main_prefix: Path, tmp_path: Path
) -> None:
    from jupyter_client.manager import start_new_kernel

    before = dict(os.environ)
    os.environ.update(
        JUPYTER_DATA_DIR=home.env["JUPYTER_DATA_DIR"],
        PYTHONPATH=str(tmp_path),
        JUPYTER_RUNTIME_DIR=str(tmp_path / "run"),
    )
    try:
        manager, client = start_new_kernel(kernel_name=MAIN, startup_timeout=120)
        try:
            printed: list[str] = []
            script = (
                "import sys, torch, site, provision_runtime.checkpoint; "
                "print(sys.prefix, torch.__version__, site.ENABLE_USER_SITE, [p for p in sys.path if 'site' in p])"
            )
            client.execute_interactive(
                script,
                timeout=120,
                output_hook=lambda m: printed.append(m["content"].get("text", "")),
            )
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    finally:
        os.environ.clear()
        os.environ.update(before)
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = f"{main_prefix}/lib/python{minor}/site-packages"
    assert "".join(printed).strip() == f"{main_prefix} 2.3.1+cu121 False ['{site}']"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "fault,phase",
    [
        ("wrong-value:1", "collectives"),
        ("die:1:ddp", "ddp"),
        ("flip-bit", "checkpoint"),
    ],
)
def test_smoke_test_can_fail_in_the_prefix(
    home: Home, main_build: object, fault: str, phase: str
) -> None:
    completed = home.run(
        "smoke", MAIN, "--quick", "--set", f"only={phase}", "--set", f"inject={fault}", "--json"
    )
    assert completed.returncode == 1, completed.stdout + completed.stderr
    (result,) = parse_result(completed.stdout)["results"]
    assert result["verdict"] == "fail"
    assert phase in [
        failed_phase["name"]
        for failed_phase in result["report"]["phases"]
        if failed_phase["verdict"] == "fail"
    ]


@pytest.mark.docker
@pytest.mark.exhaustive  # in CI, .ci/run makes the image of the main command beside all tests
def test_image_runs_the_smoke_test(home: Home, main_build: object, docker_base: str) -> None:
    result = home.run(
        "build",
        *MAIN_REQUEST,
        "--image",
        "--base",
        docker_base,
        "--set=profile=quick",
        timeout_s=1500,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passport = json.loads((home.project / "passports" / MAIN / "passport.json").read_text())
    assert {place: verdict["verdict"] for place, verdict in passport["smoke"].items()} == {
        "prefix": "pass",
        "image": "pass",
    }
    facts = passport["smoke"]["image"]["report"]["facts"]
    assert "2.3.1+cu121" in json.dumps(facts)
    assert passport["image"]["reference"].startswith(f"provision/{MAIN}:")
    bill = home.run("image", "sbom", MAIN)
    assert "provision-runtime" in bill.stdout, bill.stderr
    again = home.run("build", MAIN, "--image", "--no-smoke")
    assert again.returncode == 0, again.stderr
    assert "made" not in again.stdout


@pytest.mark.docker
@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["checkpoints", "training"])
def test_first_docs_example_runs_in_the_image(
    home: Home, main_build: object, docker_base: str, tmp_path: Path, page: str
) -> None:
    result = home.run("image", "build", MAIN, "--base", docker_base)
    assert result.returncode == 0, result.stderr
    tmp_path.chmod(0o777)  # the image's user writes there
    (tmp_path / "train.py").write_text(first_example(page))
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    completed = home.run("image", "run", MAIN, "--mount", f"{tmp_path}:/workspace", "--", *torchrun)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert list(tmp_path.glob("*/checkpoints/latest"))


@pytest.mark.docker
@pytest.mark.exhaustive
def test_images_with_and_without_jupyter_share_large_layers(
    home: Home, main_build: object, docker_base: str
) -> None:
    """To the byte, and on the disk; whichever of the two is first."""
    for name, more in ((MAIN, ()), ("bare", ("--no-jupyter",))):
        assert home.run("lock", name, *MAIN_REQUEST, *more).returncode == 0
        assert home.run("env", "create", name).returncode == 0
        result = home.run(
            "image", "build", name, "--base", docker_base, "--output", f"oci:{home.root / name}"
        )
        assert result.returncode == 0, result.stderr
    full, bare = (_layers(home.root / name) for name in (MAIN, "bare"))
    large = {"base", "python", "torch", "cuda"}
    assert {group for group, _ in bare} >= large
    assert [row for row in bare if row[0] in large] == [row for row in full if row[0] in large]
    files = {
        digest: (home.root / MAIN / "blobs" / "sha256" / digest.removeprefix("sha256:")).stat()
        for _, digest in full
    }
    shared = [files[digest] for _, digest in bare if digest in files]
    # The rest is the layer of small packages: Jupyter is one of them.
    assert sum(file.st_size for file in shared) > 0.9 * sum(file.st_size for file in files.values())
    assert {files[digest].st_nlink for group, digest in bare if group in large} == {
        4
    }  # of both environments, and both exports
    assert home.run("env", "remove", "bare", "--yes").returncode == 0


def _layers(layout: Path) -> list[tuple[str, str]]:
    """Group and digest."""
    digest = json.loads((layout / "index.json").read_bytes())["manifests"][0][
        "digest"
    ].removeprefix("sha256:")
    rows = json.loads((layout / "blobs" / "sha256" / digest).read_bytes())["layers"]
    return [(row["annotations"]["org.provision.group"], row["digest"]) for row in rows]


@pytest.mark.docker
def test_unavailable_base_skips_loudly_or_fails_with_image(home: Home, main_build: object) -> None:
    skipped = home.run("build", MAIN, "--no-smoke", "--base", "no-such-base:1")
    assert skipped.returncode == 0, skipped.stderr
    assert "warning: no image was made: The base image no-such-base:1" in skipped.stderr
    assert "skipped" in skipped.stdout
    result = home.run("image", "build", MAIN, "--base", "no-such-base:1")
    assert result.returncode == 9
    assert "no-such-base:1" in result.stderr


@pytest.mark.docker
@pytest.mark.exhaustive
def test_image_of_a_second_environment_is_tested_and_removed(
    home: Home, cpu_request: tuple[str, ...], docker_base: str
) -> None:
    """image build alone, then smoke in it, then everything of the machine goes and the lab keeps its folder."""
    import docker

    assert home.run("build", "imaged", *cpu_request, "--no-image", "--no-smoke").returncode == 0
    completed = home.run("image", "build", "imaged", "--base", docker_base)
    assert completed.returncode == 0, completed.stderr
    (home.root / "folder").mkdir()
    files = (
        f"--set=folder={home.root / 'folder'}",
        "--output",
        str(home.root / "kept"),
    )
    tested = home.run("smoke", "imaged", "--image", "--quick", *files)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert [path.name for path in (home.root / "kept").rglob("report.json")] == ["report.json"] * 2
    assert list((home.root / "folder").iterdir()) == []
    passport = json.loads((home.project / "passports" / "imaged" / "passport.json").read_text())
    assert (
        passport["smoke"]["image"]["verdict"] == "pass" and passport["kernel"]["name"] == "imaged"
    )
    client = docker.from_env()
    assert client.images.list(name="provision/imaged")
    assert home.run("env", "remove", "imaged", "--yes").returncode == 0
    assert not client.images.list(name="provision/imaged")
    client.close()
    assert not [
        path
        for folder in ("prefixes", "images")
        for path in (home.project / folder).glob("*imaged*")
    ]
    assert not (home.root / "jupyter" / "kernels" / "imaged").exists()
    assert (home.envs / "imaged" / "conda-lock.yml").exists()
    assert home.run("env", "remove", "imaged", "--yes").returncode == 9


@pytest.mark.exhaustive
def test_reachable_channel_provides_python(
    home: Home, main_build: object, cpu_request: tuple[str, ...]
) -> None:
    """The bootstrapped channel, named as any channel is: nothing is packaged, and the lock says where Python is from. Its Python
    needs this machine's glibc, which the request must then allow."""
    from provision import lockfile

    (channel_folder,) = (home.root / "data" / "channels").glob("py*")
    glibc = (channel_folder / "glibc").read_text().strip()
    request = ("from-channel", *cpu_request, "--channel", channel_folder.as_uri(), "--glibc", glibc)
    assert home.run("render", *request).returncode == 0
    result = home.run("lock", "from-channel")
    assert result.returncode == 0, result.stderr
    assert "no conda channel answers" not in result.stderr
    lock = lockfile.read(home.envs / "from-channel" / "conda-lock.yml")
    assert (lock.python_from, lock.portable) == (
        "channel",
        False,
    )  # its files lie on this machine's disk
    again = home.run("channel", "bootstrap", "--json")
    assert parse_result(again.stdout)["path"] == str(channel_folder)


@pytest.mark.exhaustive
def test_progress_only_on_a_terminal(home: Home, main_build: object) -> None:
    """Bars on a terminal; plain lines elsewhere."""
    assert home.run("env", "remove", MAIN, "--yes").returncode == 0
    status, output = on_terminal(home, "env", "create", MAIN)
    assert status == 0
    assert "\x1b[" in output and "linking conda packages" in output
    assert "installing wheels" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert home.run("env", "remove", MAIN, "--yes").returncode == 0
    plain = home.run("env", "create", MAIN)
    assert plain.returncode == 0 and "\x1b[" not in plain.stderr


def test_conda_reads_every_record_of_the_prefix(main_prefix: Path, main_build: object) -> None:
    """conda, mamba and rattler take every *.json in conda-meta for the record of a package."""
    from rattler import PrefixRecord

    records = sorted((main_prefix / "conda-meta").glob("*.json"))
    names = {PrefixRecord.from_path(path).name.normalized for path in records}
    assert "python" in names and len(names) == len(records)
