"""`provision checkpoint`: runs the runtime's `checkpoint` command, and reads its JSON.

What is on the disk and how it is read is the business of `provision_runtime.checkpoint`; nothing of
it is imported here. The same command works without provision, e.g. on a node:
`python -m provision_runtime checkpoint list ROOT`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from provision.core.errors import (
    IntegrityError,
    InUse,
    InvalidSpec,
    ProvisionError,
    ToolFailed,
    Unreachable,
)
from provision.core.process import run
from provision.core.types import Meter, Progress
from provision.workflow.smoke.runner import RUNTIME

# Exit codes of the command that come with an answer; any other means that it broke down.
WITH_ANSWER = (0, 1, 3)
ERRORS: dict[str, type[ProvisionError]] = {
    "invalid": InvalidSpec,
    "damaged": IntegrityError,
    "in use": InUse,
    "unreachable": Unreachable,
}


def inspect(
    verb: str,
    root: str,
    store_options: Mapping[str, Any],
    arguments: Sequence[str],
    progress: Progress,
) -> dict[str, Any]:
    """The JSON answer of `checkpoint VERB ROOT`.

    store_options: fsspec's, for a URL. Raises the command's error as ours: InvalidSpec if the root
    or step does not exist, IntegrityError for a manifest that cannot be read, InUse for a folder
    whose writer is alive, Unreachable for a store that does not answer, OSError for the system's
    own.
    """
    command = [sys.executable, str(RUNTIME), "checkpoint", verb, "--json", *arguments]
    for key, value in store_options.items():
        command += ["--option", f"{key}={json.dumps(value)}"]
    with _Meter(progress) as meter:
        # Our own environment: it is our own Python, which may find fsspec by PYTHONPATH.
        finished = run(
            [*command, "--", root], env=os.environ, check=False, on_stderr_line=meter.read_line
        )
    if finished.returncode not in WITH_ANSWER:
        raise ToolFailed(finished.args, finished.returncode, finished.stderr)
    document: dict[str, Any] = json.loads(finished.stdout)
    if "error" in document:
        raise _as_exception(document["error"])
    return document


def _as_exception(error: dict[str, Any]) -> Exception:
    if error["kind"] == "system":
        return OSError(error["errno"], error["message"], error["filename"])
    return ERRORS[error["kind"]](error["message"], advice=error["advice"])


class _Meter:
    """Shows the progress lines of the command.

    {"total": BYTES} starts a meter, {"advance": BYTES} moves it.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self._meter: Meter | None = None

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def read_line(self, line: str) -> None:
        try:
            report = json.loads(line)
        except ValueError:  # a warning of the interpreter, for example
            return
        if "total" in report:
            self._stack.close()
            self._meter = self._stack.enter_context(
                self._progress.meter("verifying", report["total"])
            )
        elif self._meter is not None:
            self._meter.advance(report["advance"])
