"""The uv executable: how it is run, and its failures in our terms."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from provision.adapters.http import TIMEOUT_VARIABLE, read_timeout_s
from provision.core.errors import (
    IntegrityError,
    NoSpace,
    ProvisionError,
    ToolFailed,
    ToolMissing,
    Unreachable,
    Unsolvable,
)
from provision.core.process import clean_environment, run


def uv_executable() -> str:
    """The uv executable that came with us as a package."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise ToolMissing(
            "The uv executable is missing.",
            advice="Reinstall provision: it brings uv as a package.",
        ) from error


# Variables that name indexes.
_INDEXES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_CONFIG_FILE",
)


def call(command: Sequence[str | Path], *, show: bool = False, alone: bool = False) -> str:
    """Run uv; its failures come back as ours. alone: no index but those that the command names."""
    env = clean_environment({"UV_NO_PROGRESS": "1"} if not sys.stderr.isatty() else None)
    if os.environ.get(TIMEOUT_VARIABLE):
        env.setdefault("UV_HTTP_TIMEOUT", str(max(1, round(read_timeout_s()))))
    if alone:
        env = {name: value for name, value in env.items() if name not in _INDEXES}
    try:
        return run(command, env=env, show=show).stdout
    except ToolFailed as error:
        raise translate_failure(error) from error


UNANSWERED = "The package index did not answer"


def is_unanswered(error: ProvisionError) -> bool:
    """Whether nothing is known of what the index has, unlike where it says that a file is gone."""
    return isinstance(error, Unreachable) and error.message.startswith(UNANSWERED)


# An answer that is none: no connection, silence, an end in the middle, a server that fails or refuses.
_NO_ANSWER = (
    "error sending request",
    "client error (Connect)",
    "dns error",
    "timed out",
    "network timeout",
    "error decoding response body",
    "HTTP status server error",
    "HTTP status client error",
)


def translate_failure(error: ToolFailed) -> ProvisionError:
    """uv's failure in our terms. The texts are uv 0.13's; what is not recognized stays a ToolFailed."""
    text = error.tail
    said = text.partition("error: ")[2] or text
    sentence = "; ".join(
        line.strip().removeprefix("cause: ") for line in said.splitlines() if line.strip()
    )
    if found := re.search(r"Hash mismatch for `([^`]+)`", text):
        return IntegrityError(
            f"{found[1]} is not the file that the lock names: its hash differs from the one in conda-lock.yml.",
            advice="Restore the lock or run `provision lock --relock`; nothing was changed.",
            details=text,
        )
    if "No space left" in text or "os error 28" in text or "Disk quota exceeded" in text:
        return NoSpace(
            "The disk is full.",
            advice="Free space and run the same command again; nothing was changed.",
            details=text,
        )
    if found := re.search(
        r"(?:HTTP status client error \((?:404|410)[^)]*\)|404 Not Found|410 Gone)[^\n]*", text
    ):
        return Unreachable(
            f"A package is gone from the index: {_shorten(sentence)}.",
            advice="Run `provision lock --relock` to choose versions that are still served.",
            details=text,
        )
    if "invalid package format" in text:
        return Unreachable(
            f"What the index serves is no whole wheel: {_because(text)}",
            advice="Check the mirror; a connection that ends early looks the same. Run the same command again.",
            details=text,
        )
    if "No solution found" in text:
        return Unsolvable(f"No set of wheels satisfies the request: {_because(text)}", details=text)
    if "Invalid zip file structure" in text or "unexpected header" in text:
        return IntegrityError(
            f"What came is not the wheel that the lock names, nor any: {_shorten(sentence)}.",
            advice="A mirror may be damaged, or a login page answers in its place; nothing was changed.",
            details=text,
        )
    if any(words in text for words in _NO_ANSWER):
        return Unreachable(
            f"{UNANSWERED}: {_shorten(sentence)}.",
            advice="Check the network, or the index settings of uv or pip.",
            details=text,
        )
    return error


def _because(text: str) -> str:
    cause = text.partition("cause:")[2] or text
    return _shorten(" ".join(cause.split()))


def _shorten(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
