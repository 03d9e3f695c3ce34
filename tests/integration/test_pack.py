"""`provision pack` with real parts: this machine's Python, tiny wheels, mksquashfs, real kills.

What a pack of torch does is in benchmarks/bench_pack.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.cluster import pack as packs
from provision.cluster.pack import Pack
from tests.faulty import Server, served
from tests.integration.conftest import NO_INDEXES, Home, make_home
from tests.results import parse_result
from tests.small import write_index

NAME = "small"
REQUEST = ("--torch", "2.13", "--cpu", "--no-companions", "--python-from", "host")
WHEELS = "https://wheels.invalid"  # whose the wheels are, by the lock
PACK_TIMEOUT_S = 120
# lz4, where the bytes of the image are not the subject: zstd takes longer than all else.


def inventory(path: Path, store: Path) -> str:
    """A nodes.yml with this store on the nodes."""
    path.write_text(f"schema: 1\ndefaults: {{path: {store}}}\n")
    return str(path)


FAST = "--compression=lz4"

pytestmark = [pytest.mark.index, pytest.mark.needs("mksquashfs", "unsquashfs")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("world")
    write_index(folder)
    with served(folder) as server:
        yield server


def behind(place: str) -> tuple[str, ...]:
    return ("--mirror", f"pypi={place}/simple", "--mirror", f"{WHEELS}={place}/files")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, packaged_python: Path, world: Server) -> Home:
    """A user with a lock of this machine's Python and a few tiny wheels, torch among them."""
    root = tmp_path_factory.mktemp("lab") / "home"
    home = make_home(root, shares_packages=True)
    no_index = {
        **NO_INDEXES,
        "UV_CACHE_DIR": str(root / "uv"),
    }
    user = Home(root=root, env={**home.env, **no_index})
    shutil.copytree(packaged_python, root / "data" / "channels", symlinks=True)
    result = user.run("lock", NAME, *REQUEST, *behind(world.url))
    assert result.returncode == 0, result.stderr
    return user


def run_pack(lab: Home, world: Server, *options: str) -> dict[str, Any]:
    result = lab.run("pack", NAME, "--json", *behind(world.url), *options)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = parse_result(result.stdout)
    return answer


def packs_folder(lab: Home) -> Path:
    return lab.project / "packs" / NAME


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def first(lab: Home, world: Server, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A pack that no test changes."""
    folder = tmp_path_factory.mktemp("first") / "packs"
    run_pack(lab, world)
    shutil.copytree(packs_folder(lab), folder)
    return packs.read_pack(folder)


@pytest.fixture
def unpacked(first: Pack, tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-dest", tree, first.image], check=True)
    return tree


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [
        (),
        (FAST,),
        ("--format", "tar"),
    ],
)
@pytest.mark.needs("taskset")
def test_two_runs_give_the_same_bytes(
    lab: Home, world: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The second is another user's: long folders, other caches, umask, time zone, one CPU."""
    one = run_pack(lab, world, *options)
    root = tmp_path / ("long-" * 20)
    shutil.copytree(lab.envs, root / "work" / "envs")
    variables = {
        "PROVISION_DATA": str(root / "data"),
        "PROVISION_CACHE": str(root / "cache"),
        "UV_CACHE_DIR": str(root / "uv"),
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1",
    }
    command = [str(Path(sys.executable).parent / "provision"), "pack", NAME, "--json"]
    result = subprocess.run(
        ["taskset", "-c", "0", *command, *behind(world.url), *options],
        cwd=root / "work", env={**lab.env, **variables}, umask=0o077, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    other = parse_result(result.stdout)
    assert Path(one.pop("image")).read_bytes() == Path(other.pop("image")).read_bytes()
    assert one == other


def test_pack_is_the_locked_environment_at_its_path(first: Pack, unpacked: Path) -> None:
    script = (unpacked / "bin" / "pip").read_text()
    assert script.startswith(f"#!{first.sidecar['install_path']}/bin/python") or "exec" in script
    code = "import sys, torch; print(torch.__version__, torch.__cached__, sep='\\n')"
    result = subprocess.run(
        [unpacked / "bin" / "python", "-I", "-c", code], capture_output=True, text=True, check=True
    )
    version, cached = result.stdout.splitlines()
    assert version == "2.13.0+cpu"
    assert Path(cached).is_file()


def test_nothing_in_it_names_this_host(first: Pack, unpacked: Path, lab: Home) -> None:
    needle = str(lab.root)
    result = subprocess.run(
        ["grep", "-rlF", needle, unpacked], capture_output=True, text=True, check=False
    )
    assert result.stdout == ""


def test_sidecar_describes_what_is_inside(first: Pack, unpacked: Path) -> None:
    command = [sys.executable, "-m", "provision_runtime", "digests", str(unpacked)]
    deep = json.loads(subprocess.run([*command, "--deep"], capture_output=True).stdout)
    sidecar = first.sidecar
    assert sidecar["root"] == deep["root"]
    assert sidecar["distributions"]["torch"] == deep["distributions"]["torch"]
    assert {"python", "pip", "numpy", "provision-runtime"} <= sidecar["distributions"].keys()
    assert packs.tree_size(unpacked) == (sidecar["unpacked_size"], sidecar["unpacked_files"])
    assert deep["lock_sha256"] == sidecar["lock_sha256"]
    packs.check_image(first)


@pytest.mark.loop
def test_mounted_pack_runs_at_its_path(lab: Home, world: Server, short_path: Path) -> None:
    answer = run_pack(
        lab, world, FAST, "--inventory", inventory(short_path / "nodes.yml", short_path)
    )
    place = Path(answer["install_path"])
    place.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop,ro", answer["image"], place], check=True)
    try:
        result = subprocess.run(
            [place / "bin" / "pip", "--version"], capture_output=True, text=True, check=True
        )
        assert str(place) in result.stdout
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.exhaustive
def test_unchanged_environment_is_not_packed_again(lab: Home, world: Server) -> None:
    one = run_pack(lab, world, FAST)
    status = Path(one["image"]).stat()
    other = run_pack(lab, world, FAST)
    assert (one["key"], other["made"]) == (other["key"], False)
    unchanged = Path(other["image"]).stat()
    assert (unchanged.st_ino, unchanged.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    preview = lab.run("pack", NAME, FAST, "--dry-run")
    assert "nothing: " in preview.stdout and "is current" in preview.stdout


@pytest.mark.exhaustive
def test_damaged_image_is_made_again(lab: Home, world: Server) -> None:
    image = Path(run_pack(lab, world, FAST)["image"])
    content = bytearray(image.read_bytes())
    content[len(content) // 2] ^= 1
    image.write_bytes(bytes(content))
    result = lab.run("pack", NAME, FAST, *behind(world.url))
    assert result.returncode == 0
    assert "is not what was packed" in result.stderr
    packs.check_image(packs.read_pack(packs_folder(lab)))


@pytest.mark.exhaustive
def test_removing_an_environment_removes_its_packs(lab: Home, world: Server) -> None:
    run_pack(lab, world, FAST)
    preview = lab.run("env", "remove", NAME, "--dry-run")
    [row] = [line for line in preview.stdout.splitlines() if line.startswith("packs ")]
    assert row.endswith(str(packs_folder(lab)))
    assert lab.run("env", "remove", NAME, "--yes").returncode == 0
    assert not packs_folder(lab).exists()


@pytest.mark.exhaustive
def test_missing_mksquashfs_says_what_to_do(lab: Home, world: Server, tmp_path: Path) -> None:
    """Before anything is installed; and tar needs no such tool."""
    shutil.rmtree(packs_folder(lab), ignore_errors=True)
    script = (
        "import provision.adapters.squashfs as s, sys\n"
        "s._ADMIN_FOLDERS = ()\n"
        "from provision.cli.main import main\nmain()"
    )
    env = {**lab.env, "PATH": str(tmp_path)}
    command = [sys.executable, "-c", script, "pack", NAME]
    result = subprocess.run(command, cwd=lab.root / "work", env=env, capture_output=True, text=True)
    assert result.returncode == 9
    assert "There is no mksquashfs" in result.stderr
    assert "--format tar" in result.stderr and "squashfs-tools" in result.stderr
    assert not packs_folder(lab).exists()
    result = subprocess.run(
        [*command, "--format", "tar", *behind(world.url)],
        cwd=lab.root / "work", env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_environments_that_cannot_be_packed(lab: Home) -> None:
    missing = lab.run("pack", "nothere")
    assert missing.returncode == 3
    assert "There is no environment `nothere`" in missing.stderr and NAME in missing.stderr
    folder = lab.envs / "unlocked"
    folder.mkdir()
    (folder / "spec.yml").write_text('torch: "2.13"\ncpu: true\n')
    unlocked = lab.run("pack", "unlocked")
    assert unlocked.returncode == 3
    assert "unlocked has no lock. Run `provision lock unlocked`" in unlocked.stderr


@pytest.mark.parametrize(
    "file,text,message",
    [
        ("spec.yml", "\npip: [numpy<2.4]\n", "is stale"),
        ("environment.yml", "# more\n", "was edited by hand"),
    ],
)
def test_stale_lock_is_not_packed(lab: Home, file: str, text: str, message: str) -> None:
    folder = lab.envs / "stale"
    shutil.copytree(lab.envs / NAME, folder, dirs_exist_ok=True)
    with (folder / file).open("a") as edited:
        edited.write(text)
    result = lab.run("pack", "stale")
    assert result.returncode == 6, result.stderr
    assert message in result.stderr
    assert not (lab.project / "packs" / "stale").exists()


def test_lock_of_another_platform_is_refused(lab: Home) -> None:
    folder = lab.envs / "other"
    folder.mkdir()
    lock = (lab.envs / NAME / "conda-lock.yml").read_text()
    spec = (lab.envs / NAME / "spec.yml").read_text()
    (folder / "spec.yml").write_text(f"{spec}platforms: [linux-aarch64]\n")
    (folder / "conda-lock.yml").write_text(lock.replace("linux-64", "linux-aarch64"))
    result = lab.run("pack", "other")
    assert result.returncode in (3, 6)
    assert "linux-aarch64" in result.stderr


def test_python_package_that_is_gone_is_named(lab: Home, world: Server, tmp_path: Path) -> None:
    """A lock with this machine's Python names its package by a path."""
    for path in (lab.root / "data" / "channels").glob("*/linux-64/python-3*.conda"):
        path.rename(path.with_suffix(".away"))
    try:
        other = inventory(tmp_path / "nodes.yml", Path("/other"))
        result = lab.run("pack", NAME, "--inventory", other, *behind(world.url))
        assert result.returncode == 8
        assert "python-3" in result.stderr and "is gone from" in result.stderr
        assert "channel bootstrap" in result.stderr
    finally:
        for path in (lab.root / "data" / "channels").glob("*/linux-64/python-3*.away"):
            path.rename(path.with_suffix(".conda"))


@pytest.mark.mounts
@pytest.mark.parametrize(
    ("tree", "image"),
    [
        (0.5, 0),
        (0.9, 0),
        (1, 0.5),
    ],
)
def test_full_disk_leaves_nothing_half(
    lab: Home, world: Server, first: Pack, tmp_path: Path, tree: float, image: float
) -> None:
    """It fills while packages are linked, while byte code is written, and while the image is."""
    size = int(tree * first.sidecar["unpacked_size"] + image * first.sidecar["size"])
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", data], check=True)
    try:
        result = lab.run("pack", NAME, FAST, *behind(world.url), PROVISION_DATA=str(data))
        assert result.returncode == 11, result.stderr
        assert "disk" in result.stderr and "is full" in result.stderr
        assert "Traceback" not in result.stderr
        assert not list(data.glob("projects/*/packs/*/*"))  # hidden ones too
    finally:
        subprocess.run(["umount", data], check=True)


def visible_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def kill_times(count: int, duration_s: float) -> list[float]:
    return [duration_s * (number + 0.5) / count for number in range(count)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 25], ids=["some", "many"])
def test_killed_pack_leaves_nothing_half(
    lab: Home, world: Server, tmp_path: Path, count: int
) -> None:
    """Whatever stage it is in; and the next run makes the same bytes."""
    data = tmp_path / "data"
    command = ("pack", NAME, FAST, *behind(world.url))
    start = time.monotonic()
    assert lab.run(*command, PROVISION_DATA=str(data)).returncode == 0
    duration_s = time.monotonic() - start
    folder = lab.project_in(data) / "packs" / NAME
    whole = packs.read_pack(folder)
    for delay_s in kill_times(count, duration_s):
        for path in visible_files(folder):  # what the last run left hidden is for the next one
            path.unlink()
        child = lab.start(*command, PROVISION_DATA=str(data))
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=PACK_TIMEOUT_S)
        if (folder / f"{whole.key}.json").exists():
            packs.check_image(packs.read_pack(folder))
    result = lab.run(*command, PROVISION_DATA=str(data))
    assert result.returncode == 0, result.stderr
    assert names(folder) == [f"{whole.key}.json", f"{whole.key}.sqsh"]
    assert packs.read_pack(folder).sidecar == whole.sidecar


@pytest.mark.exhaustive
def test_interrupted_pack_leaves_nothing(lab: Home, world: Server, tmp_path: Path) -> None:
    data = tmp_path / "data"
    child = lab.start("pack", NAME, FAST, *behind(world.url), PROVISION_DATA=str(data))
    assert child.stderr is not None
    for line in child.stderr:
        if "compiling" in line:
            break
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PACK_TIMEOUT_S)
    assert child.returncode == 130, err
    assert names(lab.project_in(data) / "packs" / NAME) == []


@pytest.mark.exhaustive
def test_two_packs_at_once_wait_for_each_other(lab: Home, world: Server, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    children = [
        lab.start("pack", NAME, FAST, "--json", *behind(world.url), PROVISION_DATA=data)
        for _ in range(2)
    ]
    answers = []
    for child in children:
        out, err = child.communicate(timeout=PACK_TIMEOUT_S)
        assert child.returncode == 0, err
        answers.append(parse_result(out))
    assert sorted(answer["made"] for answer in answers) == [False, True]
    assert answers[0]["sha256"] == answers[1]["sha256"]
