"""Every verb where streams are closed or full, limits are tight, or the home and the working folder
are missing: no traceback, and never success without its output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.cli.test_cli import VERBS

PROVISION = shlex.join([sys.executable, "-c", "from provision.cli.main import main; main()"])
# What a shell runs before the verb, and how it redirects; whether the output can be written.
KINDS = {
    "stdout closed": ("", ">&-", False),
    "stdout full": ("", ">/dev/full", False),
    "no reader": ("", "| :", False),
    "stderr closed": ("", "2>&-", True),
    "stderr full": ("", "2>/dev/full", True),
    "stdin closed": ("", "<&-", True),
    "memory": ("ulimit -v 400000;", "", True),
    "open files": ("ulimit -n 20;", "", True),
    "file sizes": ("ulimit -f 0;", "", True),
    "no home": ("unset HOME;", "", True),
    "home not writable": ("export HOME=/proc;", "", True),
    "working folder deleted": ("mkdir gone; cd gone; rmdir ../gone;", "", True),
    "dumb": ("export TERM=dumb LC_ALL=C PYTHONIOENCODING=ascii;", "", True),
    "temporary folder full": ("export TMPDIR=/dev/full;", "", True),
}
# They stay until they are stopped.
LEFT_OUT = (("notebook",), ("shell",))


def arguments(command: click.Command) -> Iterator[str]:
    """What is required, with names of nothing."""
    for parameter in command.params:
        if not parameter.required:
            continue
        if isinstance(parameter, click.Option):
            yield parameter.opts[-1]
        choices = getattr(parameter.type, "choices", None)
        yield choices[0] if choices else "none"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb(kind: str, tmp_path: Path) -> None:
    before, redirection, is_written = KINDS[kind]
    variables = {**os.environ, "HOME": str(tmp_path), "PROVISION_DATA": str(tmp_path / "data")}
    wrong = []
    for path, command in VERBS:
        words = [*path, *arguments(command)]
        if path in LEFT_OUT:
            continue
        for options in (words, [*words, "--json"], [*path, "--help"]):
            script = f"set -o pipefail; {before} {PROVISION} {shlex.join(options)} {redirection}"
            result = subprocess.run(
                ["bash", "-c", script],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=120,
            )
            is_loud = "Traceback" in result.stderr or "Exception ignored" in result.stderr
            if is_loud or (result.returncode == 0 and not is_written):
                wrong.append((options, result.returncode, result.stderr[-300:]))
    assert wrong == []
