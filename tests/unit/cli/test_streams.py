"""Standard streams that are closed, full or broken: no traceback, a documented exit code, and never 0
where the output was not written."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROVISION = [sys.executable, "-c", "from provision.cli.main import main; main()"]
# A result, a page of click's, an error of ours.
VERBS = {"json": "kernel list --json", "page": "kernel --help", "error": "lock none --json"}
STATUS = {"json": 0, "page": 0, "error": 3}
NO_OUTPUT = {">&-": 14, ">/dev/full": 11, "| :": 141}
HARMLESS = ("2>&-", "2>/dev/full", "<&- 2>&-")


def run(folder: Path, command: str, redirection: str, **options: object) -> tuple[int, str]:
    """Exit code and standard error of a verb in a shell that redirects its streams."""
    environment = {**os.environ, "HOME": str(folder), "PROVISION_DATA": str(folder / "data")}
    environment["PYTHONUNBUFFERED"] = ""  # with it, errors come at other points
    script = f"set -o pipefail; {shlex.join(PROVISION)} {command} {redirection}"
    result = subprocess.run(
        [shutil.which("bash") or "bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**environment, **options.pop("env", {})},  # type: ignore[dict-item]
        **options,  # type: ignore[call-overload]
    )
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr
    return result.returncode, result.stderr


@pytest.mark.parametrize("redirection", NO_OUTPUT)
@pytest.mark.parametrize("verb", ["json", "page"])
def test_output_that_is_not_written_is_no_success(
    verb: str, redirection: str, tmp_path: Path
) -> None:
    code, _ = run(tmp_path, VERBS[verb], redirection)
    assert code == NO_OUTPUT[redirection]


def test_an_error_has_its_exit_code_also_without_an_output(tmp_path: Path) -> None:
    codes = {run(tmp_path, VERBS["error"], redirection)[0] for redirection in NO_OUTPUT}
    assert codes == {STATUS["error"]}


@pytest.mark.parametrize("verb", ["json", "error"])
def test_other_streams_do_not_matter(verb: str, tmp_path: Path) -> None:
    codes = {run(tmp_path, VERBS[verb], redirection)[0] for redirection in HARMLESS}
    assert codes == {STATUS[verb]}


def limit(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, value))


@pytest.mark.parametrize(
    "surroundings",
    [
        {"preexec_fn": limit(resource.RLIMIT_NOFILE, 20)},
        {"preexec_fn": limit(resource.RLIMIT_AS, 400_000 << 10)},
        {"env": {"TERM": "dumb", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}},
    ],
    ids=["open files", "address space", "ascii"],
)
def test_little_is_enough_for_a_list(surroundings: dict[str, object], tmp_path: Path) -> None:
    assert run(tmp_path, VERBS["json"], "", **surroundings)[0] == 0


def test_file_that_may_not_grow_is_named(tmp_path: Path) -> None:
    script = f"ulimit -f 0; {shlex.join(PROVISION)} kernel list >out"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 14 and "File too large" in result.stderr, result.stderr


def test_deleted_working_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    script = f"rmdir ../gone; {shlex.join(PROVISION)} kernel list"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder)
    assert result.returncode == 14 and "the working folder" in result.stderr, result.stderr


def test_a_file_that_is_opened_does_not_become_the_output(tmp_path: Path) -> None:
    """With closed streams, the next file would get the number 1 or 2."""
    code = (
        "from provision.cli import streams; streams.prepare(); "
        f"file = open({str(tmp_path / 'file')!r}, 'w'); print(file.fileno() > 2, file=file)"
    )
    script = f"{shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-"
    subprocess.run(["bash", "-c", script], check=True)
    assert (tmp_path / "file").read_text() == "True\n"


@pytest.mark.parametrize("variable", ["", "1"])
def test_buffering_stays_as_python_chose_it(variable: str) -> None:
    """PYTHONUNBUFFERED, which container images set."""
    code = (
        "import sys; from provision.cli import streams\n"
        "def read(): return [(each.line_buffering, each.write_through) for each in "
        "(sys.stdout, sys.stderr)]\n"
        "before = read(); streams.prepare(); print(before == read())"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": variable}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.stdout == "True\n", result.stderr


def test_a_reader_that_leaves_ends_the_verb(tmp_path: Path) -> None:
    """More than a pipe holds, so that it is still writing."""
    script = f"set -o pipefail; {shlex.join(PROVISION)} matrix --json | head -c 1 >/dev/null"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (141, "")
