"""User-visible failures: a clear line, the documented exit code, nothing lost.

Environments hold this machine's Python and tiny wheels; `nox -s exhaustive` does the same with
PyTorch's CPU build.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.core.atomic import staging_path
from tests.faulty import served
from tests.integration.conftest import NO_INDEXES, Home, make_home, on_terminal
from tests.integration.waiting import eventually
from tests.small import write_index

pytestmark = pytest.mark.index

NAME = "lab"
Works = Callable[[Home], bool]
QUICK = ("--no-image", "--no-smoke")


SMALL_REQUEST = ("--torch", "2.13", "--cpu", "--no-companions", "--python-from", "host")
WHEELS = "https://wheels.invalid"  # whose the tiny wheels are, by the lock
CHOICES = (("numpy", "2.3.0"), ("six", "1.17.0"), ("tqdm", "4.67.0"))


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the packages come from, and what must work once they are installed."""

    request: tuple[str, ...]
    variables: Mapping[str, str]
    empty: Callable[[str], tuple[str, str]]  # the variable that names another server instead
    check: str
    commands: tuple[str, ...]


@pytest.fixture(scope="module", params=["small", "torch"])
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Source]:
    if request.param == "torch":
        yield Source(
            request=request.getfixturevalue("cpu_request"),
            variables={},
            empty=lambda url: ("UV_DEFAULT_INDEX", url),
            check="import torch; assert torch.ones(2).sum() == 2",
            commands=("pip", "torchrun"),
        )
        return
    folder = tmp_path_factory.mktemp("index")
    write_index(folder, CHOICES)
    with served(folder) as server:
        yield Source(
            request=SMALL_REQUEST,
            variables={
                "PROVISION_MIRRORS": f"pypi={server.url}/simple {WHEELS}={server.url}/files",
                **NO_INDEXES,
                "UV_CACHE_DIR": str(folder / "uv"),
            },
            empty=lambda url: (
                "PROVISION_MIRRORS",
                f"pypi={url}/simple {WHEELS}={url}/files",
            ),
            check="import torch; assert torch.__version__ == '2.13.0+cpu'",
            commands=("pip",),
        )


@pytest.fixture(scope="module")
def request_(source: Source) -> tuple[str, ...]:
    return (NAME, *source.request)


def new_user(root: Path, packaged_python: Path, source: Source) -> Home:
    home = make_home(root, shares_packages=True)
    (root / "data").mkdir()
    shutil.copytree(packaged_python, root / "data" / "channels", copy_function=os.link)
    return Home(root=root, env={**home.env, **source.variables})


@pytest.fixture(scope="module")
def locked(
    tmp_path_factory: pytest.TempPathFactory,
    packaged_python: Path,
    request_: tuple[str, ...],
    source: Source,
) -> Path:
    """The environment's folder, locked once."""
    home = new_user(tmp_path_factory.mktemp("locked") / "lab", packaged_python, source)
    result = home.run("lock", *request_)
    assert result.returncode == 0, result.stderr
    return home.envs / NAME


@pytest.fixture
def desk(tmp_path: Path, packaged_python: Path, locked: Path, source: Source) -> Home:
    """A fresh user who has the environment's folder, and has not built it."""
    home = new_user(tmp_path / "lab", packaged_python, source)
    shutil.copytree(locked, home.envs / NAME)
    return home


@pytest.fixture
def lab(desk: Home) -> Home:
    """A fresh user with the environment built; uv's cache is the machine's, so this takes seconds."""
    result = desk.run("build", NAME, *QUICK)
    assert result.returncode == 0, result.stderr
    return desk


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, packaged_python: Path, locked: Path, source: Source
) -> Home:
    home = new_user(tmp_path_factory.mktemp("built") / "lab", packaged_python, source)
    shutil.copytree(locked, home.envs / NAME)
    result = home.run("build", NAME, *QUICK)
    assert result.returncode == 0, result.stderr
    return home


@pytest.fixture
def shared_lab(built: Home) -> Iterator[Home]:
    """One user with the environment built, for all tests that may not change its prefix: this
    fails the one that does. What they change in its folder is undone."""
    folder, place = built.envs / NAME, prefix(built)
    before, inode = contents(built), place.stat().st_ino
    yield built
    shutil.rmtree(folder)
    folder.mkdir()
    for name, content in before.items():
        (folder / name).write_bytes(content)
    assert place.stat().st_ino == inode


def prefix(lab: Home) -> Path:
    return lab.project / "prefixes" / NAME


@pytest.fixture
def works(source: Source) -> Callable[[Home], bool]:
    """Whether a user's environment works."""

    def check(lab: Home) -> bool:
        command: list[str | Path] = [prefix(lab) / "bin" / "python", "-I", "-c", source.check]
        return subprocess.run(command).returncode == 0

    return check


def leftovers(lab: Home) -> list[str]:
    """Hidden or temporary things that a build may not leave behind."""
    places = [
        lab.project / "prefixes",
        lab.envs / NAME,
        lab.root / "data" / "channels",
        lab.project / "images",
    ]
    return [
        str(path)
        for place in places
        if place.exists()
        for path in place.iterdir()
        if path.name.startswith(".") and path.name != ".tmp"
    ]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def contents(user: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (user.envs / NAME).iterdir()}


def test_failed_relock_changes_nothing(desk: Home) -> None:
    before = contents(desk)
    result = desk.run("lock", NAME, "--pip", "no-such-package-xyzzy", "--relock")
    assert result.returncode == 5, result.stderr
    assert contents(desk) == before
    assert desk.run("lock", NAME).returncode == 0


def test_dry_run_shows_what_a_new_lock_would_change(desk: Home) -> None:
    before = contents(desk)
    result = desk.run("lock", NAME, "--pip", "six", "--relock", "--dry-run")
    assert result.returncode == 0, result.stderr
    *changes, _, last = result.stdout.splitlines()
    assert ["added", "six"] in [line.split()[:2] for line in changes]
    assert "numpy" not in result.stdout
    assert last == "nothing was changed (--dry-run)"
    assert contents(desk) == before


@pytest.mark.exhaustive
def test_packages_given_later_are_added(desk: Home) -> None:
    assert desk.run("lock", NAME, "--pip", "six", "--relock").returncode == 0
    assert desk.run("lock", NAME, "--pip", "tqdm", "--relock").returncode == 0
    written = (desk.envs / NAME / "environment.yml").read_text()
    assert "- six" in written and "- tqdm" in written


def test_python_from_channel_differs_from_the_lock(desk: Home) -> None:
    before = contents(desk)
    result = desk.run("lock", NAME, "--python-from", "channel")
    assert result.returncode == 6
    assert "its Python is from host" in result.stderr
    assert contents(desk) == before


def test_changed_request_does_not_overwrite_the_lock(desk: Home) -> None:
    before = contents(desk)
    result = desk.run("build", NAME, "--pip", "six", *QUICK)
    assert result.returncode == 6
    assert "the request changed" in result.stderr
    assert contents(desk) == before


@pytest.mark.parametrize("package", ["python", "numpy"])
def test_changed_hash_is_refused_and_the_old_prefix_works(
    shared_lab: Home, package: str, works: Works
) -> None:
    import yaml

    lock = shared_lab.envs / NAME / "conda-lock.yml"
    sha = next(
        entry["hash"]["sha256"]
        for entry in yaml.safe_load(lock.read_text())["package"]
        if entry["name"] == package
    )
    edit(lock, sha, ("0" if sha[0] != "0" else "1") + sha[1:])
    result = shared_lab.run("env", "create", NAME)
    assert result.returncode == 7, result.stderr
    assert package in result.stderr and "Traceback" not in result.stderr
    assert works(shared_lab)
    assert not leftovers(shared_lab)


@pytest.mark.exhaustive
def test_changed_hash_is_refused_on_a_terminal(shared_lab: Home) -> None:
    """uv's words go to the terminal there, and must still be understood."""
    import yaml

    lock = shared_lab.envs / NAME / "conda-lock.yml"
    sha = next(
        entry["hash"]["sha256"]
        for entry in yaml.safe_load(lock.read_text())["package"]
        if entry["name"] == "numpy"
    )
    edit(lock, sha, ("0" if sha[0] != "0" else "1") + sha[1:])
    status, output = on_terminal(shared_lab, "env", "create", NAME)
    assert status == 7, output
    assert "numpy" in output and "is not the file that the lock names" in output


@pytest.mark.exhaustive
def test_missing_package_is_named(shared_lab: Home, source: Source, works: Works) -> None:
    """An index that answers, but has nothing of what is locked; uv's cache is empty, so it must be asked."""
    with Gone() as server:
        name, value = source.empty(server)
        env = {**shared_lab.env, name: value, "UV_CACHE_DIR": str(shared_lab.root / "uv")}
        result = Home(root=shared_lab.root, env=env).run(
            "env", "create", NAME, "--prefix", str(shared_lab.root / "new")
        )
    assert result.returncode == 8, result.stderr
    assert (
        "A locked package is gone from the index" in result.stderr
        and "not found in the package registry" in result.stderr
    )
    assert works(shared_lab)
    assert not (shared_lab.root / "new").exists()


class Gone:
    """A server that has nothing."""

    def __enter__(self) -> str:
        import http.server
        import threading

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(404)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_unreachable_index(desk: Home, source: Source) -> None:
    before = (desk.envs / NAME / "conda-lock.yml").read_bytes()
    name, value = source.empty("http://127.0.0.1:9")
    uv = {"UV_HTTP_RETRIES": "0", "UV_CACHE_DIR": str(desk.root / "uv")}
    user = Home(root=desk.root, env={**desk.env, **uv, name: value})
    result = user.run("lock", NAME, "--relock")
    assert result.returncode == 8, result.stderr
    assert "index did not answer" in result.stderr
    assert (desk.envs / NAME / "conda-lock.yml").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.mounts
def test_full_disk(shared_lab: Home, small_disk: Path, works: Works) -> None:
    result = shared_lab.run("env", "create", NAME, "--prefix", str(small_disk / "lab"))
    assert result.returncode == 11, result.stderr
    assert "disk" in result.stderr and "full" in result.stderr
    assert list(small_disk.iterdir()) == []
    assert works(shared_lab)


def test_kernel_name_of_another_owner(shared_lab: Home) -> None:
    kernel = shared_lab.root / "jupyter" / "kernels" / NAME
    own = (kernel / "kernel.json").read_bytes()
    (kernel / "kernel.json").write_text(
        '{"argv": ["mine"], "display_name": "mine", "language": "python"}'
    )
    result = shared_lab.run("build", NAME, *QUICK)
    assert result.returncode == 12
    assert "was not created by provision" in result.stderr
    assert "mine" in (kernel / "kernel.json").read_text()
    (kernel / "kernel.json").write_bytes(own)


def test_image_without_an_engine(desk: Home) -> None:
    result = desk.run("build", NAME, "--image", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert result.returncode == 9
    assert "No Docker engine answers" in result.stderr


@pytest.mark.exhaustive
def test_prefix_elsewhere_is_remembered(desk: Home, source: Source, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere with space" / "lab"
    assert desk.run("env", "create", NAME, "--prefix", str(place)).returncode == 0
    for command in source.commands:
        subprocess.run([place / "bin" / command, "--help"], check=True, capture_output=True)
    assert str(place) in desk.run("env", "list").stdout
    assert desk.run("env", "diff", NAME).returncode == 0


@pytest.mark.exhaustive
def test_prefix_without_interpreter_is_rebuilt(lab: Home, works: Works) -> None:
    (prefix(lab) / "bin" / "python").unlink()
    assert lab.run("env", "create", NAME).returncode == 0
    assert works(lab)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "name: lab\n",
        "",
        "name: 2024-01-01\n",
        "dependencies: [pip: {}]\n",
        "dependencies:\n- 'pip ==>>= 3'\nchannels: []\n",
    ],
)
def test_invalid_environment_file(desk: Home, text: str) -> None:
    (desk.envs / NAME / "environment.yml").write_text(text)
    result = desk.run("build", NAME, *QUICK)
    assert result.returncode == 6, result.stderr
    assert "environment.yml was edited" in result.stderr


@pytest.mark.exhaustive
def test_damaged_evidence_is_rewritten(shared_lab: Home) -> None:
    passport = shared_lab.project / "passports" / NAME / "passport.json"
    for damage in ("{", '{"schema": 1}', '{"schema": 1, "lock": {}, "smoke": {"prefix": {}}}'):
        passport.write_text(damage)
        listed = shared_lab.run("env", "list")
        assert listed.returncode == 0 and "unreadable" in listed.stdout
        assert shared_lab.run("passport", "show", NAME).returncode == 7
    assert shared_lab.run("build", NAME, *QUICK).returncode == 0
    assert shared_lab.run("passport", "show", NAME).returncode == 0


@pytest.mark.exhaustive
def test_same_name_in_two_folders_has_two_prefixes(
    shared_lab: Home, request_: tuple[str, ...], tmp_path: Path
) -> None:
    other = ("--envs", str(tmp_path / "other"))
    assert shared_lab.run("lock", *request_, *other).returncode == 0
    result = shared_lab.run("env", "create", NAME, *other)
    assert result.returncode == 0, result.stderr
    for options in ((), other):
        assert shared_lab.run("env", "diff", NAME, *options).returncode == 0
    assert shared_lab.run("env", "remove", NAME, "--yes", *other).returncode == 0
    assert shared_lab.run("env", "diff", NAME).returncode == 0


@pytest.mark.exhaustive
def test_ctrl_c_while_packaging_python_leaves_the_channel_intact(desk: Home) -> None:
    (channel,) = (desk.root / "data" / "channels").glob("py*")
    before = sorted(path.name for path in channel.rglob("*.conda"))
    child = desk.start("channel", "bootstrap", "--force")
    eventually(staging_path(channel).exists)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert sorted(path.name for path in channel.rglob("*.conda")) == before
    assert not leftovers(desk)
    assert desk.run("env", "create", NAME, "--prefix", str(desk.root / "second")).returncode == 0


@pytest.mark.parametrize("event", ["swapped", "solving", "building", "wheels"])
def test_kill_at_any_moment(lab: Home, event: str, works: Works) -> None:
    """A relock and rebuild is killed when it has come to an event; what stood before stands, and the same command completes."""
    command = ("build", NAME, "--pip", "six", "--relock", *QUICK)
    marker = (prefix(lab) / "conda-meta" / "provision.state").read_bytes()
    child = lab.start(*command)
    assert child.stderr is not None
    if event == "solving":
        while "solving" not in child.stderr.readline():
            pass
    else:
        building = staging_path(prefix(lab))
        happened = {
            "building": building.exists,
            "wheels": lambda: any(building.glob("lib/python*/site-packages/torch*")),
            "swapped": lambda: (
                prefix(lab).exists()
                and (prefix(lab) / "conda-meta" / "provision.state").read_bytes() != marker
            ),
        }
        eventually(happened[event])
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert works(lab)
    result = lab.run(*command)
    assert result.returncode == 0, result.stderr
    assert works(lab)
    assert lab.run("env", "diff", NAME).returncode == 0
    assert subprocess.run([prefix(lab) / "bin" / "python", "-c", "import six"]).returncode == 0
    assert not leftovers(lab)


@pytest.mark.needs("pgrep")
def test_ctrl_c_leaves_nothing(shared_lab: Home, works: Works) -> None:
    assert shared_lab.run("lock", NAME, "--relock", "--pip", "six").returncode == 0
    child = shared_lab.start("build", NAME, *QUICK)
    building = staging_path(prefix(shared_lab))
    eventually(building.exists)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, out + err
    assert "Traceback" not in err
    assert works(shared_lab)
    assert not leftovers(shared_lab)
    result = subprocess.run(
        ["pgrep", "-f", str(shared_lab.root)], capture_output=True, text=True
    ).stdout
    assert result == ""


@pytest.mark.exhaustive
def test_waiting_run_reuses_the_first_runs_result(desk: Home) -> None:
    """Two different requests for one name: the second must not replace a lock that it would have refused to replace."""
    first = desk.start("lock", NAME, "--pip", "six", "--relock")
    assert first.stderr is not None
    while "solving" not in first.stderr.readline():
        pass
    second = desk.run("lock", NAME, "--pip", "tqdm")
    first.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 6)
    assert "tqdm" not in (desk.envs / NAME / "environment.yml").read_text()


def test_concurrent_builds_of_one_name(lab: Home, works: Works) -> None:
    assert lab.run("lock", NAME, "--relock", "--pip", "six").returncode == 0
    first = lab.start("build", NAME, *QUICK)
    eventually(staging_path(prefix(lab)).exists)
    waited = lab.run("build", NAME, *QUICK)
    out, err = first.communicate(timeout=300)
    assert first.returncode == 0, out + err
    assert waited.returncode == 0, waited.stderr
    assert f"waiting for process {first.pid}" in waited.stderr
    assert works(lab)
