"""What goes wrong for users: a clear line, the documented code, nothing lost. On a small real environment (torch for CPUs)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.folders import beside
from tests.integration.conftest import Eventually, Home, make_home

pytestmark = pytest.mark.index

NAME = "lab"
QUICK = ("--no-image", "--no-smoke")


@pytest.fixture(scope="module")
def request_(cpu_request: tuple[str, ...]) -> tuple[str, ...]:
    return (NAME, *cpu_request)


@pytest.fixture
def lab(tmp_path: Path, home: Home, request_: tuple[str, ...]) -> Home:
    """A fresh user with the environment built; uv's cache is the machine's, so this takes seconds."""
    made = make_home(tmp_path / "lab")
    shutil.copytree(home.root / "data" / "channels", made.root / "data" / "channels")  # packaging Python anew would take seconds each
    done = made.run("build", *request_, *QUICK)
    assert done.returncode == 0, done.stderr
    return made


def prefix(lab: Home) -> Path:
    return lab.root / "data" / "prefixes" / NAME


def works(lab: Home) -> bool:
    script = "import torch; assert torch.ones(2).sum() == 2"
    return subprocess.run([prefix(lab) / "bin" / "python", "-I", "-c", script]).returncode == 0


def leftovers(lab: Home) -> list[str]:
    """Hidden or temporary things that a build may not leave behind."""
    places = [lab.root / "data" / "prefixes", lab.envs / NAME, lab.root / "data" / "channels", lab.root / "data" / "images"]
    return [str(path) for place in places if place.exists() for path in place.iterdir() if path.name.startswith(".")]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_edited_environment_makes_the_lock_stale(lab: Home) -> None:
    environment, lock = lab.envs / NAME / "environment.yml", lab.envs / NAME / "conda-lock.yml"
    before = lock.read_bytes()
    edit(environment, "- numpy", "- numpy<2.4")
    done = lab.run("build", NAME, *QUICK)
    assert done.returncode == 6
    assert "is stale" in done.stderr and "environment.yml was edited by hand" in done.stderr and "--relock" in done.stderr
    assert lock.read_bytes() == before
    again = lab.run("lock", NAME, "--relock")
    assert again.returncode == 0, again.stderr
    assert lock.read_bytes() != before
    assert "numpy<2.4" in environment.read_text()
    built = lab.run("build", NAME, *QUICK)
    assert built.returncode == 0, built.stderr
    assert works(lab)


def test_a_changed_request_is_not_locked_over(lab: Home) -> None:
    before = {path.name: path.read_bytes() for path in (lab.envs / NAME).iterdir()}
    done = lab.run("build", NAME, "--pip", "six", *QUICK)
    assert done.returncode == 6
    assert "the request changed" in done.stderr
    assert {path.name: path.read_bytes() for path in (lab.envs / NAME).iterdir()} == before


@pytest.mark.parametrize("package", ["python", "sympy"])
def test_a_changed_hash_is_refused_and_the_old_prefix_works(lab: Home, package: str) -> None:
    import yaml

    lock = lab.envs / NAME / "conda-lock.yml"
    sha = next(entry["hash"]["sha256"] for entry in yaml.safe_load(lock.read_text())["package"] if entry["name"] == package)
    edit(lock, sha, ("0" if sha[0] != "0" else "1") + sha[1:])
    done = lab.run("env", "create", NAME)
    assert done.returncode == 7, done.stderr
    assert package in done.stderr and "Traceback" not in done.stderr
    assert works(lab)
    assert not leftovers(lab)


def test_a_package_that_is_gone_is_named(lab: Home) -> None:
    import yaml

    lock = lab.envs / NAME / "conda-lock.yml"
    entry = next(entry for entry in yaml.safe_load(lock.read_text())["package"] if entry["name"] == "sympy")
    with Gone() as server:
        edit(lock, entry["url"], f"{server}/sympy-{entry['version']}-py3-none-any.whl")
        done = lab.run("env", "create", NAME, UV_CACHE_DIR=str(lab.root / "uv"))
    assert done.returncode == 8, done.stderr
    assert "gone from the index" in done.stderr and "sympy" in done.stderr
    assert works(lab)


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


def test_an_index_that_does_not_answer(lab: Home) -> None:
    before = (lab.envs / NAME / "conda-lock.yml").read_bytes()
    done = lab.run(
        "lock", NAME, "--relock", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0", UV_CACHE_DIR=str(lab.root / "uv")
    )
    assert done.returncode == 8, done.stderr
    assert "index did not answer" in done.stderr
    assert (lab.envs / NAME / "conda-lock.yml").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 60 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk(lab: Home, small_disk: Path) -> None:
    done = lab.run("env", "create", NAME, "--prefix", str(small_disk / "lab"))
    assert done.returncode == 11, done.stderr
    assert "disk" in done.stderr and "full" in done.stderr
    assert list(small_disk.iterdir()) == []
    assert works(lab)


def test_a_kernel_name_that_is_somebody_elses(lab: Home) -> None:
    kernel = lab.root / "jupyter" / "kernels" / NAME
    (kernel / "kernel.json").write_text('{"argv": ["mine"], "display_name": "mine", "language": "python"}')
    done = lab.run("build", NAME, *QUICK)
    assert done.returncode == 12
    assert "was not made by provision" in done.stderr
    assert "mine" in (kernel / "kernel.json").read_text()


def test_no_engine_with_image(lab: Home) -> None:
    done = lab.run("build", NAME, "--image", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert done.returncode == 9
    assert "No Docker engine answers" in done.stderr


def test_a_prefix_elsewhere_is_found_again(lab: Home, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere with space" / "lab"
    assert lab.run("env", "create", NAME, "--prefix", str(place)).returncode == 0
    assert subprocess.run([place / "bin" / "pip", "--version"], capture_output=True).returncode == 0
    assert subprocess.run([place / "bin" / "torchrun", "--help"], capture_output=True).returncode == 0
    assert str(place) in lab.run("env", "list").stdout
    assert lab.run("env", "diff", NAME).returncode == 0


@pytest.mark.parametrize("moment", [0.4, 0.9, 1.4, 1.9, 2.4])
def test_killed_at_any_moment(lab: Home, moment: float) -> None:
    """The lock gets another package, and the build that brings it in is killed; what stood before stands, and a re-run completes."""
    assert lab.run("lock", NAME, "--relock", "--pip", "six").returncode == 0
    child = lab.start("build", NAME, *QUICK)
    time.sleep(moment)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert works(lab)
    done = lab.run("build", NAME, *QUICK)
    assert done.returncode == 0, done.stderr
    assert works(lab)
    assert lab.run("env", "diff", NAME).returncode == 0
    assert subprocess.run([prefix(lab) / "bin" / "python", "-c", "import six"]).returncode == 0
    assert not leftovers(lab)


def test_ctrl_c_leaves_nothing(lab: Home, eventually: Eventually) -> None:
    assert lab.run("lock", NAME, "--relock", "--pip", "six").returncode == 0
    child = lab.start("build", NAME, *QUICK)
    building = beside(prefix(lab))
    eventually(building.exists, 60)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, out + err
    assert "Traceback" not in err
    assert works(lab)
    assert not leftovers(lab)
    mine = subprocess.run(["pgrep", "-f", str(lab.root)], capture_output=True, text=True).stdout
    assert mine == ""


def test_two_builds_of_one_name(lab: Home, eventually: Eventually) -> None:
    assert lab.run("lock", NAME, "--relock", "--pip", "six").returncode == 0
    first = lab.start("build", NAME, *QUICK)
    eventually(beside(prefix(lab)).exists, 60)
    refused = lab.run("build", NAME, "--no-wait", *QUICK)
    assert refused.returncode == 12
    assert f"process {first.pid}" in refused.stderr
    waited = lab.run("build", NAME, *QUICK)
    out, err = first.communicate(timeout=300)
    assert first.returncode == 0, out + err
    assert waited.returncode == 0, waited.stderr
    assert works(lab)
