"""Mirrors: locks do not mention them, closed networks need nothing else, faults take one line.

The input is small: this machine's Python as the channel `lab`, and an index of tiny wheels.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision import lockfile, render, resolver
from provision.adapters import conda
from provision.core.mirrors import parse_mirror
from provision.resolver import spec
from provision.workflow.context import mirrors_of
from tests.conftest import SHARED_RECORDS
from tests.faulty import Fault, Server, served
from tests.integration.conftest import NO_INDEXES, Home, make_home
from tests.integration.waiting import eventually
from tests.small import lock_text, write_index

NAME = "small"
REQUEST = (
    NAME,
    "--torch",
    "2.13",
    "--cpu",
    "--no-companions",
    "--python",
    f"3.{sys.version_info[1]}",
    "--python-from",
    "channel",
)
PREFIX_ONLY = ("--no-image", "--no-smoke", "--no-kernel")
WHEELS = "https://wheels.invalid"  # whose the wheels are, by the locks

pytestmark = (
    pytest.mark.index
)  # pip, which is packaged with this machine's Python, comes from there


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, packaged_python: Path) -> Iterator[Server]:
    """A server of the channel and the index."""
    folder = tmp_path_factory.mktemp("world")
    (mirror_folder,) = packaged_python.glob("py*")
    shutil.copytree(mirror_folder, folder / "lab", ignore=shutil.ignore_patterns("*.zst", "shards"))
    correct(folder / "lab" / "linux-64" / "repodata.json")
    write_index(folder)
    with served(folder) as server:
        yield server


def correct(repodata: Path) -> None:
    """What channels do to records after packages were made: here Python no longer needs this machine's glibc."""
    content = json.loads(repodata.read_text())
    for record in content["packages.conda"].values():
        record["depends"] = [text for text in record["depends"] if not text.startswith("__glibc")]
    repodata.write_text(json.dumps(content))


@pytest.fixture(autouse=True)
def in_order(world: Server) -> None:
    world.clear()


def behind(place: str) -> tuple[str, ...]:
    """Options that name a place with the world's layout as the mirror of everything."""
    return (
        "--mirror",
        f"lab={place}/lab",
        "--mirror",
        f"pypi={place}/simple",
        "--mirror",
        f"{WHEELS}={place}/files",
    )


def user(
    root: Path,
    *,
    locked: Path | None = None,
    variables: Mapping[str, str] | None = None,
    shares_packages: bool = False,
) -> Home:
    """Somebody with caches of their own, who has nothing yet but perhaps a lock.

    shares_packages: conda packages are unpacked already, and not asked of a mirror.
    """
    home = make_home(root, shares_packages=shares_packages)
    patience = {"PROVISION_HTTP_TIMEOUT": "30", "UV_HTTP_RETRIES": "1"}
    no_index = {
        **NO_INDEXES,
        "UV_CACHE_DIR": str(root / "uv"),
    }
    home_of_user = Home(root=root, env={**home.env, **no_index, **patience, **(variables or {})})
    if locked:
        shutil.copytree(locked, home_of_user.envs / NAME)
    return home_of_user


@pytest.fixture(scope="module")
def locked(world: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder, locked behind the server."""
    mirror_folder = user(tmp_path_factory.mktemp("locked") / "home")
    result = mirror_folder.run("lock", *REQUEST, "--channel", "lab", *behind(world.url))
    assert result.returncode == 0, result.stderr
    return mirror_folder.envs / NAME


def prefix(home: Home) -> Path:
    return home.project / "prefixes" / NAME


def test_no_file_mentions_the_mirror(world: Server, locked: Path, tmp_path: Path) -> None:
    for path in locked.iterdir():
        assert "127.0.0.1" not in path.read_text(), path
    lock = lockfile.read_file(locked / "conda-lock.yml")
    places = {
        entry.url.startswith((conda.channel_url("lab"), f"{WHEELS}/")) for entry in lock.entries
    }
    assert places == {True}
    assert lock.custom_metadata["provision_portable"] == "true"
    other = user(tmp_path)
    result = other.run("lock", *REQUEST, "--channel", "lab", *behind(str(world.folder)))
    assert result.returncode == 0, result.stderr
    for path in locked.iterdir():
        assert (other.envs / NAME / path.name).read_bytes() == path.read_bytes()


def test_a_mirrors_password_is_in_no_file(world: Server, tmp_path: Path) -> None:
    """rattler and uv write the addresses that they read into their caches."""
    world.authorization = f"Basic {base64.b64encode(b'alice:swordfish').decode()}"
    home = user(tmp_path)
    url = world.url.replace("//", "//alice:swordfish@")
    cache = str(tmp_path / "cache")
    try:
        refused = home.run(
            "lock", *REQUEST, "--channel", "lab", *behind(world.url), XDG_CACHE_HOME=cache
        )
        assert refused.returncode == 8, refused.stderr
        options = (*REQUEST, "--channel", "lab", *behind(url))
        created = home.run("build", *options, *PREFIX_ONLY, XDG_CACHE_HOME=cache)
        assert created.returncode == 0, created.stderr
    finally:
        world.authorization = None
    assert "swordfish" not in created.stdout + created.stderr
    assert list((tmp_path / "cache").rglob("*.info.json")), "rattler kept no repodata"
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"swordfish" not in path.read_bytes(), path


@pytest.mark.exhaustive
def test_lock_is_the_same_with_and_without_a_mirror(world: Server, tmp_path: Path) -> None:
    """In the open, everything is where its own address says: here in a folder, with pip's settings for the index."""
    place = world.folder.as_uri()
    options = (*REQUEST, "--channel", f"{place}/lab")
    settings = {"PIP_INDEX_URL": f"{place}/simple"}
    in_the_open, closed_in = (
        user(tmp_path / "open", variables=settings),
        user(tmp_path / "closed in", variables=settings),
    )
    mirror = ("--mirror", f"{place}={world.url}")
    for home, more in ((in_the_open, ()), (closed_in, mirror)):
        result = home.run("lock", *options, *more)
        assert result.returncode == 0, result.stderr
    assert any("repodata" in path for path in world.log)
    locks = [
        (home.envs / NAME / "conda-lock.yml").read_bytes() for home in (in_the_open, closed_in)
    ]
    assert locks[0] == locks[1]
    for home, more in ((in_the_open, ()), (closed_in, mirror)):
        result = home.run("env", "create", NAME, *more)
        assert result.returncode == 0, result.stderr
    assert any(path.startswith("/lab/linux-64/python-") for path in world.log)
    assert records(in_the_open) == records(closed_in)
    assert (
        subprocess.run(
            [prefix(closed_in) / "bin" / "python", "-c", "import torch, numpy"]
        ).returncode
        == 0
    )


def records(home: Home) -> dict[str, dict[str, object]]:
    """conda-meta, without where this user's cache is."""
    result = {}
    for path in (prefix(home) / "conda-meta").glob("*-*.json"):
        content = json.loads(path.read_text())
        result[path.name] = {
            key: value
            for key, value in content.items()
            if key not in ("extracted_package_dir", "link")
        }
    assert result
    return result


@pytest.mark.conda
@pytest.mark.parametrize(
    "spec_request",
    [
        {"torch": "2.3.0", "cuda": "12.1", "source": "pytorch", "companions": False},
        {"torch": "2.6", "cuda": "12.6"},
    ],
    ids=["pytorch", "conda-forge"],
)
def test_real_records_through_a_server(spec_request: dict[str, object]) -> None:
    resolution = resolver.resolve(spec.combine({}, spec_request, name=""))
    texts = render.render_inputs(resolution)
    inputs = lockfile.read_inputs(
        texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab")
    )

    def locked_behind(*mirrors: str) -> str:
        solver = conda.Solver(mirrors_of([parse_mirror(text, Path()) for text in mirrors]))
        return lock_text(inputs, lockfile.solve(inputs, resolution, solver=solver))

    with served(SHARED_RECORDS) as server:
        behind_a_server = locked_behind(
            *(f"{name}={server.url}/{name}" for name in ("pytorch", "nvidia", "conda-forge"))
        )
    assert behind_a_server == locked_behind(f"*={SHARED_RECORDS}")
    assert "127.0.0.1" not in behind_a_server and "file://" not in behind_a_server
    assert f"url: {conda.channel_url('conda-forge')}" in behind_a_server


@pytest.fixture(scope="module")
def folder(world: Server, locked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the lock names, in a folder."""
    mirror_folder = tmp_path_factory.mktemp("mirror") / "every thing"
    home = user(tmp_path_factory.mktemp("mirroring") / "home", locked=locked)
    result = home.run("channel", "mirror", NAME, str(mirror_folder), *behind(world.url))
    assert result.returncode == 0, result.stderr
    return mirror_folder


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_mirror_folder_needs_no_network(folder: Path, locked: Path, tmp_path: Path) -> None:
    home = user(tmp_path, locked=locked)
    command = ["unshare", "-n", str(Path(sys.executable).parent / "provision")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=home.root / "work",
            env=home.env,
            capture_output=True,
            text=True,
            timeout=300,
        )

    unreachable = run("build", NAME, "--no-image", "--no-smoke")
    assert unreachable.returncode == 8, unreachable.stderr
    built = run("build", NAME, "--no-image", "--no-smoke", "--mirror", str(folder))
    assert built.returncode == 0, built.stderr
    assert (
        subprocess.run([prefix(home) / "bin" / "python", "-c", "import torch, numpy"]).returncode
        == 0
    )
    assert home.run("env", "diff", NAME, "--deep").returncode == 0
    # Its records are those in the packages: this machine's Python needs this machine's glibc there.
    glibc = str(os.confstr("CS_GNU_LIBC_VERSION")).split()[1]
    relocked = run("lock", NAME, "--relock", "--glibc", glibc, "--mirror", str(folder))
    assert relocked.returncode == 0, relocked.stderr
    assert "file:" not in (home.envs / NAME / "conda-lock.yml").read_text()
    verified = run("lock", "verify", NAME, "--mirror", str(folder))
    assert (verified.returncode, verified.stdout) == (0, f"{NAME}: 6 packages, nothing wrong\n")


@pytest.mark.exhaustive
def test_mirror_folder_can_be_served(folder: Path, locked: Path, tmp_path: Path) -> None:
    home = user(tmp_path, locked=locked)
    with served(folder) as server:
        result = home.run("env", "create", NAME, "--mirror", server.url)
        assert result.returncode == 0, result.stderr
        assert any(path.startswith("/files/wheels.invalid/") for path in server.log)
    (meta,) = (prefix(home) / "conda-meta").glob("python-3*.json")
    assert json.loads(meta.read_text())["channel"] == conda.channel_url("lab").rstrip("/")


@pytest.mark.exhaustive
def test_incomplete_mirror_folder_is_reported(folder: Path, locked: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    shutil.copytree(folder, partial)
    for wheel in partial.rglob("torch-*.whl"):
        wheel.unlink()
    home = user(tmp_path / "home", locked=locked)
    result = home.run("env", "create", NAME, "--mirror", str(partial))
    assert result.returncode == 8, result.stderr
    assert "torch" in result.stderr
    assert not prefix(home).exists()
    absent = home.run("env", "create", NAME, "--mirror", str(tmp_path / "none"))
    assert absent.returncode == 8 and "mirrors.txt" in absent.stderr


# Which verb, what its mirror does to requests for what, whether it does it for ever, and what comes of it.
EVER = 10**6
ENV, MIRROR, LOCK = "env create", "channel mirror", "lock"
CASES: list[tuple[str, str, Fault, int, int, str]] = [
    (LOCK, "/repodata", 404, EVER, 8, "404"),
    (LOCK, "/repodata", "truncate", EVER, 8, "A channel among lab did not answer"),
    (
        LOCK,
        "/repodata",
        "stall",
        EVER,
        8,
        "PROVISION_HTTP_TIMEOUT, in seconds, gives a slow network longer (now 1)",
    ),
    (LOCK, "/repodata", "truncate", 1, 0, ""),
    (LOCK, "/repodata", "slow", EVER, 0, ""),
    (LOCK, "simple/torch", "drop", EVER, 8, "package index did not answer"),
    (ENV, "lab/linux-64/python-", 404, EVER, 8, "python-3"),
    (ENV, "lab/linux-64/python-", "truncate", EVER, 8, "python-3"),
    (ENV, "lab/linux-64/python-", "wrong", EVER, 7, "not the conda package that the lock names"),
    (ENV, "lab/linux-64/python-", "stall", EVER, 8, "python: the server was silent"),
    (ENV, "lab/linux-64/python-", "stall", 1, 0, ""),
    (ENV, "files/torch-", 404, EVER, 8, "torch"),
    (ENV, "files/torch-", "truncate", EVER, 8, "torch"),
    (ENV, "files/torch-", "wrong", EVER, 7, "not the wheel that the lock names"),
    (
        MIRROR,
        "files/torch-",
        404,
        EVER,
        8,
        "/files/torch-2.13.0%2Bcpu-py3-none-any.whl is gone: the server answers HTTP 404",
    ),
    (MIRROR, "files/torch-", "wrong", EVER, 7, "is not the file that the lock names"),
    (MIRROR, "files/torch-", "stall", EVER, 8, "silent for too long"),
    (MIRROR, "files/torch-", "truncate", 1, 0, ""),
    (
        MIRROR,
        "lab/linux-64/python-",
        "truncate",
        EVER,
        8,
        "the connection ended before the file did",
    ),
]


def name_of(case: tuple[str, str, Fault, int, int, str]) -> str:
    verb, part, kind, times, _, _ = case
    return f"{verb.replace(' ', '-')}-{part.strip('/-').rpartition('/')[2]}-{kind}{'-once' if times == 1 else ''}"


@dataclass(frozen=True)
class Outcome:
    """What a command did behind a mirror at fault."""

    home: Home
    finished: subprocess.CompletedProcess[str]

    @property
    def mirror(self) -> Path:
        return self.home.root / "mirror"


@pytest.fixture(scope="module")
def outcomes(
    world: Server, locked: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Every case, each with a server of its own, several at a time: most of their time is waiting."""
    root = tmp_path_factory.mktemp("faults")

    def run(case: tuple[str, str, Fault, int, int, str]) -> Outcome:
        verb, part, kind, times, _, _ = case
        home = user(
            root / name_of(case),
            locked=None if verb == LOCK else locked,
            shares_packages="python" not in part,
        )
        with served(world.folder) as server:
            server.fault(part, kind, times)
            more = {
                LOCK: (*REQUEST, "--channel", "lab"),
                ENV: (NAME,),
                MIRROR: (NAME, str(home.root / "mirror")),
            }
            # Little patience only where the fault is silence: a busy machine is silent for a second, too.
            patience = (
                {"PROVISION_HTTP_TIMEOUT": "1" if times == EVER else "5"}
                if kind in ("stall", "slow")
                else {}
            )
            return Outcome(
                home,
                home.run(
                    *verb.split(), *more[verb], *behind(server.url), timeout_s=120, **patience
                ),
            )

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(map(name_of, CASES), pool.map(run, CASES)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_faulty_mirror_is_named(
    outcomes: dict[str, Outcome], case: tuple[str, str, Fault, int, int, str]
) -> None:
    verb, _, _, _, code, message = case
    result = outcomes[name_of(case)]
    check(result.finished, code, message)
    if verb == LOCK:
        assert (result.home.envs / NAME / "conda-lock.yml").exists() == (code == 0)
        assert code == 0 or not result.home.envs.exists()
    elif verb == ENV:
        assert [path.name for path in (result.home.project / "prefixes").iterdir()] == (
            [NAME] if code == 0 else []
        )
    else:
        pages = [path.read_text() for path in result.mirror.glob("simple/*/index.html")]
        wheels = [path.name for path in result.mirror.rglob("[!.]*.whl")]
        assert any(name.startswith("numpy-") for name in wheels)
        assert all(any(name in page for page in pages) for name in wheels)  # whole, and named
        assert bool(list(result.mirror.rglob("*.part"))) <= bool(code)


def check(finished: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == (code != 0), finished.stderr
    assert not errors or message in errors[0], finished.stderr


@pytest.mark.parametrize("case", ["env-create-python-stall", "channel-mirror-torch-stall"])
def test_command_completes_once_the_mirror_recovers(
    world: Server, outcomes: dict[str, Outcome], case: str
) -> None:
    result = outcomes[case]
    if case.startswith("env"):
        assert result.home.run("env", "create", NAME, *behind(world.url)).returncode == 0
        return
    again = result.home.json("channel", "mirror", NAME, str(result.mirror), *behind(world.url))
    assert [Path(path).name[:6] for path in again["fetched"]] == ["torch-"]
    assert not list(result.mirror.rglob("*.part"))


@pytest.mark.exhaustive
def test_interrupted_mirroring_is_resumed(world: Server, locked: Path, tmp_path: Path) -> None:
    home, folder = user(tmp_path / "home", locked=locked), tmp_path / "mirror"
    world.fault("torch-", "stall")
    mirror = ("channel", "mirror", NAME, str(folder), *behind(world.url))
    child = home.start(*mirror, PROVISION_HTTP_TIMEOUT="30")
    eventually(lambda: any(path.stat().st_size for path in folder.rglob(".torch-*.part")))
    child.send_signal(signal.SIGINT)
    _, output = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert not (folder / "mirrors.txt").exists() and not list(folder.rglob("torch-*.whl"))
    world.clear()
    assert home.run(*mirror).returncode == 0
    assert not list(folder.rglob("*.part"))


@pytest.mark.mounts
def test_full_disk_is_not_blamed_on_the_mirror(world: Server, locked: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        result = user(tmp_path / "home", locked=locked).run(
            "channel", "mirror", NAME, str(small / "m"), *behind(world.url)
        )
        check(result, 11, "disk is full")
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.exhaustive
def test_settings_are_read_from_the_config(
    world: Server, locked: Path, tmp_path: Path, folder: Path
) -> None:
    settings = tmp_path / "settings.yml"
    settings.write_text(f"mirrors:\n- {folder.name}\n")
    shutil.copytree(folder, tmp_path / folder.name)
    home = user(tmp_path / "home", locked=locked, shares_packages=True)
    result = home.run("env", "create", NAME, PROVISION_CONFIG=str(settings))
    assert result.returncode == 0, result.stderr
    settings.write_text("mirrors: oops\n")
    completed = home.run("env", "create", NAME, PROVISION_CONFIG=str(settings))
    assert completed.returncode == 3 and str(settings) in completed.stderr
