"""The process's standard streams, where they are closed, full, or no longer read."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TextIO

from provision.core.system_errors import named_errors

STANDARD_OUTPUT = "/dev/stdout"
PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells have it


class StandardOutput(io.TextIOWrapper):
    """Standard output. Its errors say where they are; if its reader has left, that ends the
    command."""

    def write(self, text: str) -> int:
        with _output_errors():
            return super().write(text)

    def flush(self) -> None:
        with _output_errors():
            super().flush()


class Narrative(StandardOutput):
    """Standard error. What cannot be written there is lost, and the work goes on."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        with named_errors(STANDARD_OUTPUT):
            yield
    except BrokenPipeError:
        sys.exit(PIPE_CLOSED)


def prepare() -> None:
    """Replace Python's streams, which are None or end in a traceback where they cannot be used."""
    # In this order: an opened file gets the lowest number that is free.
    sys.stdin = sys.stdin or _closed_stream("r")
    sys.stdout = _as(StandardOutput, sys.stdout or _closed_stream("w"))
    sys.stderr = _as(Narrative, sys.stderr or _closed_stream("w"))


def _closed_stream(mode: Literal["r", "w"]) -> TextIO:
    """A stream that is at its end, and fails to write. Without it, the next file that is opened
    would get its number, and what is printed with it."""
    return os.fdopen(os.open(os.devnull, os.O_RDONLY), mode)


def _as(kind: type[StandardOutput], stream: TextIO) -> StandardOutput:
    assert isinstance(stream, io.TextIOWrapper)
    encoding = stream.encoding
    line_buffering, write_through = stream.line_buffering, stream.write_through
    return kind(
        stream.detach(),
        encoding,
        errors="backslashreplace",  # a path may hold characters that the locale cannot encode
        line_buffering=line_buffering,
        write_through=write_through,
    )
