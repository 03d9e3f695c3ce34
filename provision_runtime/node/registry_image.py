"""An image from a registry on this node: pulled by digest with the engine that the node has, checked,
and named as the one that jobs use."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from . import store as stores
from .errors import NodeError
from .facts import which
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

# Engines that can be asked which digest an image has.
ENGINES = ("podman", "docker", "nerdctl")
ASK_S = 60.0


def pull(
    path: str, name: str, reference: str, run: Mapping[str, str], timeout_s: float
) -> dict[str, Any]:
    """Pull `HOST/NAME@sha256:...` unless it is here, and check that the engine has that digest.

    Raises NodeError (no-engine, pull-failed, wrong-bytes).
    """
    with stores.locked(Store(path, run), name, run):
        engine = _engine()
        is_new = not _has(engine, reference)
        if is_new:
            result = _run([engine, "pull", "--quiet", reference], timeout_s)
            if result.returncode != 0:
                raise NodeError("pull-failed", _last_line(result.stderr))
            if not _has(engine, reference):
                raise NodeError(
                    "wrong-bytes", f"{engine} has no image {reference} after pulling it"
                )
    return {"way": os.path.basename(engine), "is_new": is_new}


def activate(path: str, name: str, reference: str, run: Mapping[str, str]) -> dict[str, Any]:
    """Write the reference to `NAME.image`, by one rename."""
    store = Store(path, run)
    with stores.locked(store, name, run):
        target = store.link(name) + ".image"
        staged = os.path.join(store.path, "staging", f"{name}.image")
        stores.write_text(target, staged, reference + "\n")
        stores.append_journal(store, "image", run, name=name, key=reference)
        stores.release(path, name, run)
    return {"active": reference}


def _engine() -> str:
    """The first engine that answers: a client without its daemon is of no use."""
    problems = []
    for name in ENGINES:
        command = which(name)
        if command is None:
            continue
        result = _run([command, "info"], ASK_S)
        if result.returncode == 0:
            return command
        problems.append(f"{name}: {_last_line(result.stderr)}")
    raise NodeError("no-engine", "; ".join(problems) or f"there is none of {', '.join(ENGINES)}")


def _has(engine: str, reference: str) -> bool:
    """Whether the engine has an image under this digest."""
    format_text = "{{range .RepoDigests}}{{println .}}{{end}}"
    result = _run([engine, "image", "inspect", "--format", format_text, reference], ASK_S)
    digest = reference.partition("@")[2]
    lines = result.stdout.decode(errors="replace").split()
    return any(line.endswith(f"@{digest}") for line in lines)


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            "timed-out", f"{command[0]} {command[1]} did not end within {timeout_s:.0f} s"
        ) from error


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"
