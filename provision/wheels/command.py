"""The uv executable: how it is run, and its failures in our terms."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from provision.errors import IntegrityError, NoSpace, ProvisionError, ToolFailed, ToolMissing, Unreachable, Unsolvable
from provision.process import clean_environment, run


def uv() -> str:
    """The uv executable that came with us as a package."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise ToolMissing("The uv executable is missing.", advice="Reinstall provision: it brings uv as a package.") from error


def call(command: Sequence[str | Path], *, show: bool = False) -> str:
    """Run uv; its failures come back as ours."""
    env = clean_environment({"UV_NO_PROGRESS": "1"} if not sys.stderr.isatty() else None)
    try:
        return run(command, env=env, show=show).stdout
    except ToolFailed as error:
        raise explain(error) from error


def explain(error: ToolFailed) -> ProvisionError:
    """uv's failure in our terms. The texts are uv 0.13's; what is not recognized stays a ToolFailed."""
    text = error.tail
    said = text.partition("error: ")[2] or text
    sentence = "; ".join(line.strip().removeprefix("cause: ") for line in said.splitlines() if line.strip())
    if found := re.search(r"Hash mismatch for `([^`]+)`", text):
        return IntegrityError(
            f"{found[1]} is not the file that the lock names: its hash differs from the one in conda-lock.yml.",
            advice="Restore the lock or run `provision lock --relock`; nothing was changed.",
            details=text,
        )
    if "No space left" in text or "os error 28" in text or "Disk quota exceeded" in text:
        return NoSpace("The disk is full.", advice="Free space and run the same command again; nothing was changed.", details=text)
    if found := re.search(r"(?:HTTP status client error \((?:404|410)[^)]*\)|404 Not Found|410 Gone)[^\n]*", text):
        return Unreachable(
            f"A package is gone from the index: {_shorten(sentence)}.",
            advice="Run `provision lock --relock` to choose versions that are still served.",
            details=text,
        )
    if "No solution found" in text:
        return Unsolvable(f"No set of wheels satisfies the request: {_because(text)}", details=text)
    if "error sending request" in text or "client error (Connect)" in text or "dns error" in text or "timed out" in text:
        return Unreachable(
            f"The package index did not answer: {_shorten(sentence)}.",
            advice="Check the network, or the index settings of uv or pip.",
            details=text,
        )
    return error


def _because(text: str) -> str:
    cause = text.partition("cause:")[2] or text
    return _shorten(" ".join(cause.split()))


def _shorten(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
