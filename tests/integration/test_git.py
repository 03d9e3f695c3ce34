"""git as the adapter uses it: real repositories, and real servers that refuse."""

from __future__ import annotations

import http.server
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.adapters import git
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing, Unreachable

pytestmark = pytest.mark.needs("git")


def run_git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=Lab", "-c", "user.email=lab@lab.example", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, text: str) -> None:
    (folder / "lab.yml").write_text(text)
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "-m", "a commit")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    commit(folder, "first\n")
    return folder


@pytest.fixture(params=[401, 404])
def refusing_server(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A git server that wants a password, or has no such repository."""
    status: int = request.param

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield status, f"http://127.0.0.1:{server.server_port}/lab.git"
        server.shutdown()


def test_a_clone_follows_its_origin(repository: Path, tmp_path: Path) -> None:
    url, clone = repository.as_uri(), tmp_path / "clone"
    git.clone(url, clone)
    assert git.head(clone) == git.remote_head(clone, url)
    commit(repository, "second\n")
    assert git.head(clone) != git.remote_head(clone, url)
    git.fast_forward(clone, url)
    assert (clone / "lab.yml").read_text() == "second\n"
    assert git.head(clone) == git.remote_head(clone, url)


def test_a_members_own_change_is_not_lost(repository: Path, tmp_path: Path) -> None:
    url, clone = repository.as_uri(), tmp_path / "the clone"
    git.clone(url, clone)
    (clone / "lab.yml").write_text("mine\n")
    commit(repository, "second\n")
    with pytest.raises(IntegrityError, match=r"was changed \(lab\.yml\)") as refused:
        git.fast_forward(clone, url)
    assert f"git -C {shlex.quote(str(clone))} checkout ." in str(refused.value.advice)
    assert (clone / "lab.yml").read_text() == "mine\n"


def test_servers_that_refuse(refusing_server: tuple[int, str], tmp_path: Path) -> None:
    """At once, without a question, also where a program for questions is configured."""
    status, url = refusing_server
    expected = {401: (Unreachable, "cannot be read"), 404: (InvalidSpec, "is not a git repository")}
    error, message = expected[status]
    with pytest.raises(error, match=message):
        git.clone(url, tmp_path / "clone")
    assert not (tmp_path / "clone").exists()


def test_addresses_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="cannot be read"):
        git.clone("http://127.0.0.1:1/lab.git", tmp_path / "clone")
    with pytest.raises(Unreachable, match="cannot be read"):
        git.clone("https://git.invalid/lab.git", tmp_path / "clone")
    with pytest.raises(InvalidSpec, match="is not a git repository"):
        git.clone((tmp_path / "none").as_uri(), tmp_path / "clone")
    with pytest.raises(InvalidSpec, match="no longer has a branch `main`"):
        _lose_branch(tmp_path)


def _lose_branch(folder: Path) -> None:
    origin, clone = folder / "moved", folder / "clone-of-moved"
    origin.mkdir()
    run_git(origin, "init", "-q", "-b", "main")
    commit(origin, "first\n")
    git.clone(origin.as_uri(), clone)
    run_git(origin, "branch", "-m", "trunk")
    git.remote_head(clone, origin.as_uri())


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("sh", "ls"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="There is no `git`"):
        git.clone("https://git.invalid/lab.git", tmp_path / "clone")


def test_what_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (
        "https://h/lab.git",
        "git@h:ml/lab.git",
        "ssh://h/lab",
        "file:///srv/lab",
        "h:lab",
    ):
        assert git.is_url(text), text
    (tmp_path / "a:b").mkdir()
    for text in ("lab", "./lab", "/srv/lab.git", "~/lab", "a:b", os.fspath(tmp_path)):
        assert not git.is_url(text), text
