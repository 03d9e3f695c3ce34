"""No words of the command line end in a traceback: random options and arguments for every verb, in an empty folder."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import click
import pytest

from tests.integration.conftest import make_home
from tests.unit.cli.test_cli import VERBS

WORDS = [
    *("", "-", ".", "..", "/", "~", "*", "=", "a=b", "a:b:c", "@x", "%s", "{}", "[1", "ü", "a b", "$(id)"),
    *("0", "-1", "3", "9" * 20, "2.3", "12.1", "1e9", "nan", "null", "true", "x" * 5000, "\x1b[31m", "a\nb"),
    *("lab", "n[1-", "n[1-3]", "/nonexistent/x", "/dev/null", "bad.yml", "bytes", "folder"),
    *("http://127.0.0.1:9/x", "file:///etc/passwd"),
]  # fmt: skip
LINES = 8  # of each verb


def words(command: click.Command, chosen: random.Random) -> list[str]:
    """Arguments of a command, and a quarter of its options, with any values."""
    line = []
    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Argument):
            count = 1 if parameter.nargs == 1 else chosen.randrange(3)
            count = count if parameter.required or chosen.random() < 0.7 else 0
            line += chosen.choices(WORDS, k=count)
        elif parameter.name not in ("help", "debug") and chosen.random() < 0.25:
            option = parameter.opts[-1]
            assert isinstance(parameter, click.Option)
            line.append(option if parameter.is_flag else f"{option}={chosen.choice(WORDS)}")
    return line


@pytest.mark.exhaustive
@pytest.mark.parametrize(("path", "command"), VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_no_words_end_in_a_traceback(
    tmp_path: Path, path: tuple[str, ...], command: click.Command
) -> None:
    home = make_home(tmp_path / "home")
    folder = home.root / "work"
    (folder / "folder").mkdir()
    (folder / "bad.yml").write_text("a: [1,\n b: {")
    (folder / "bytes").write_bytes(bytes(range(256)))
    chosen = random.Random(" ".join(path))
    for _ in range(LINES):
        line = words(command, chosen)
        try:
            result = home.run(*path, *line, timeout_s=60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{path} {line} did not end")
        assert "Traceback" not in result.stderr, (path, line, result.stderr)
        assert 0 <= result.returncode <= 14, (path, line, result.stderr)
