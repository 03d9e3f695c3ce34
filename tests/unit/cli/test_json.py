"""--json: one object from every verb and for every error, by a schema that is published."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest

from provision.cli import main
from provision.core import errors
from provision.core.schema import SCHEMAS
from provision.workflow import environments
from tests.paths import ROOT
from tests.results import parse_result
from tests.unit.cli.test_cli import VERBS

FILES = sorted((SCHEMAS / "results").iterdir())
ROW = re.compile(r"^\| (.*) \| \[(.*)\]\(\.\./(.*)\) \| .+ \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "json.md").read_text(encoding="utf-8"))
COMMANDS = dict(VERBS)
JSON_VERBS = [path for path in COMMANDS if path not in {("completion",), ("help",)}]
JSON_VERBS += [("lock",), ("matrix",)]  # groups that are verbs too
# Runs the environment's shell, whose output is its own.
PRINTS_NONE = (("shell",), ("notebook",))
# Where a verb would do more than an empty folder allows for, or take seconds.
OPTIONS = {
    ("build",): ["--torch", "2.3", "--cuda", "12.1", "--python-from", "channel", "--dry-run"],
    ("channel", "bootstrap"): ["--dry-run"],
    ("doctor",): ["--only", "shm-small"],
    ("lab", "init"): ["--dry-run"],
    ("matrix",): ["--torch", "2.3.1"],
    ("matrix", "explain"): ["--torch", "2.3", "--cuda", "12.1", "--python-from", "channel"],
    ("matrix", "lock"): ["--torch", "2.3.1", "--no-such"],
    ("render",): ["--torch", "2.3", "--cuda", "12.1", "--python-from", "channel", "--dry-run"],
}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "PROVISION_DATA", "PROVISION_CACHE", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    monkeypatch.chdir(tmp_path)


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["provision", *words])
        status = main._run()
        return status, parse_result(capsys.readouterr().out)

    return run_verb


def required(command: click.Command) -> Iterator[str]:
    """What the command requires, with names of nothing."""
    for parameter in command.params:
        if parameter.required:
            if isinstance(parameter, click.Option):
                yield parameter.opts[-1]
            choices = getattr(parameter.type, "choices", None)
            yield choices[0] if choices else "none"


@pytest.mark.parametrize("path", JSON_VERBS, ids=" ".join)
def test_every_verb_prints_one_object(path: tuple[str, ...], run: Run) -> None:
    words = required(COMMANDS[path]) if path in COMMANDS else ()
    status, document = run(*path, "--json", *words, *OPTIONS.get(path, ()))
    if document["schema"] == "provision.error/1":
        assert document["exit_code"] == status != 0 and document["message"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_schema_is_valid_and_documented(file: Path) -> None:
    schema = json.loads(file.read_text(encoding="utf-8"))
    jsonschema_rs.meta.validate(schema)
    name = file.name.removesuffix(".schema.json")
    assert schema["properties"]["schema"] == {"const": f"provision.{name}/1"}
    assert [path for _, row, path in ROWS if row == name] == [str(file.relative_to(ROOT))]


def test_every_row_has_a_schema_and_every_verb_a_row() -> None:
    assert len(ROWS) == len(FILES)
    commands = [command for verbs, _, _ in ROWS for command in re.findall(r"`(.*?)`", verbs)]
    verbs = {command.partition(" --")[0] for command in commands} - {"doctor script"}
    assert verbs == {" ".join(path) for path in JSON_VERBS if path not in PRINTS_NONE}


def test_schemas_are_of_the_results_as_they_are() -> None:
    script = ROOT / "docs" / "make_schemas.py"
    check = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize(
    "words,kind,code",
    [
        (["build", "--torch", "9.9", "--cuda", "12.1"], "NoSuchBuild", 4),
        (["env", "list", "--nonsense"], "UsageError", 2),
        (["nonsense"], "UsageError", 2),
        (["doctor", "one", "two"], "UsageError", 2),
    ],
)
def test_errors(words: list[str], kind: str, code: int, run: Run) -> None:
    status, document = run(*words, "--json")
    assert (status, document["kind"], document["exit_code"]) == (code, kind, code)


@pytest.mark.parametrize(
    "error,kind,code",
    [
        (KeyboardInterrupt(), "Interrupted", 130),
        (click.exceptions.Abort(), "Interrupted", 130),
        (OSError(13, "Permission denied", "/x"), "SystemRefused", 14),
        (MemoryError(), "SystemRefused", 14),
    ],
)
def test_errors_of_the_system(
    error: BaseException, kind: str, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "environments", raises(error))
    status, document = run("env", "list", "--json")
    assert (status, document["kind"], document["exit_code"]) == (code, kind, code)


@pytest.mark.parametrize(
    "error,options", [(KeyError("x"), ()), (errors.InvalidSpec("No."), ("--debug",))]
)
def test_a_traceback_comes_with_an_object(
    error: Exception,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environments, "environments", raises(error))
    monkeypatch.setattr(sys, "argv", ["provision", "env", "list", "--json", *options])
    with pytest.raises(type(error)):
        main._run()
    document = parse_result(capsys.readouterr().out)
    assert (document["kind"], document["exit_code"]) == (type(error).__name__, 1)


def test_an_error_after_a_result_prints_no_second_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from provision.cli.console import Console

    console = Console(as_json=True)
    console.result("clean", {"removed": [], "dry_run": False}, "")
    console.error(errors.CheckFailed("Too late."))
    out, err = capsys.readouterr()
    assert parse_result(out)["schema"] == "provision.clean/1" and "Too late." in err


def raises(error: BaseException) -> object:
    def function(*_: object) -> None:
        raise error

    return function
