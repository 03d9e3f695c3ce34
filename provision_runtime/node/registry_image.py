"""An image from a registry on this node: pulled by digest with the engine that the node has, checked,
and named as the one that jobs use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .commands import TIMED_OUT, run_command, which
from .errors import NodeError
from .store import Store
from .store_files import write_text
from .store_journal import append_journal
from .store_lock import locked, release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .results import Installation

# Engines that can be asked which digest an image has.
ENGINES = ("podman", "docker", "nerdctl")
ASK_S = 60.0


def pull(
    path: str, name: str, reference: str, run: Mapping[str, str], timeout_s: float
) -> Installation:
    """Pull `HOST/NAME@sha256:...` unless it is here, and check that the engine has that digest.

    Raises NodeError (no-engine, pull-failed, timed-out, wrong-bytes).
    """
    with locked(Store(path, run), name, run):
        engine = _engine()
        is_new = not _has(engine, reference)
        if is_new:
            status, output = run_command([engine, "pull", "--quiet", reference], timeout_s)
            if status == TIMED_OUT:
                raise NodeError("timed-out", output)
            if status != 0:
                raise NodeError("pull-failed", output or "it printed nothing")
            if not _has(engine, reference):
                raise NodeError(
                    "wrong-bytes", f"{engine} has no image {reference} after pulling it"
                )
    return {"method": os.path.basename(engine), "is_new": is_new}


def activate(path: str, name: str, reference: str, run: Mapping[str, str]) -> dict[str, str]:
    """Write the reference to `NAME.image`, by one rename."""
    store = Store(path, run)
    with locked(store, name, run):
        staged = store.join("staging", f"{name}.image")
        write_text(store.link(name) + ".image", staged, reference + "\n")
        append_journal(store, "image", run, name=name, key=reference)
        release(path, name, run)
    return {"active": reference}


def _engine() -> str:
    """The first engine that responds: a client without its daemon is of no use."""
    problems = []
    for name in ENGINES:
        command = which(name)
        if command is None:
            continue
        status, output = run_command([command, "info"], ASK_S)
        if status == 0:
            return command
        problems.append(f"{name}: {output}")
    raise NodeError("no-engine", "; ".join(problems) or f"there is none of {', '.join(ENGINES)}")


def _has(engine: str, reference: str) -> bool:
    """Whether the engine has an image under this digest."""
    format_text = "{{range .RepoDigests}}{{println .}}{{end}}"
    command = [engine, "image", "inspect", "--format", format_text, reference]
    status, output = run_command(command, ASK_S)
    digest = reference.partition("@")[2]
    return status == 0 and any(line.endswith(f"@{digest}") for line in output.split())
