"""Results as text or JSON on standard output; narrative and progress on standard error.

The only module that styles output. Colors and bars appear only on a terminal, and rich respects
NO_COLOR. `--json` prints the same values that the text shows, as one object whose schema is in
provision/schemas/results and docs/json.md. What the text says is in each verb's `output.py`.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from provision.core.credentials import public_document, without_credentials
from provision.core.errors import ProvisionError
from provision_runtime.report.text import escape_terminal

# How far what happens meanwhile is indented.
NARRATIVE_INDENT = 2
# Lines of a message, however wide the terminal is.
WIDEST = 100
# Labels of messages by their color.
LABELS = {"warning:": 33, "error:": 31}
# The last column of a table stays readable, even if the line then is too long for the terminal.
NARROWEST_COLUMN = 20
# States by their color (ECMA-48). They are a cell of a table, or follow a title.
STATES = {
    32: "pass|passed|current|fit|active|ok|COMPLETED|RUNNING",
    31: "fail|failed|bad|differs|damaged|unfit|FAILED|TIMEOUT|OUT_OF_MEMORY|NODE_FAIL",
    33: "warn|unknown|stale|no lock|not installed|skipped|PENDING",
}

if TYPE_CHECKING:
    import rich.progress
    from _typeshed import DataclassInstance


def to_json(value: Any) -> Any:
    """A value in types that JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def json_object(name: str, value: object) -> dict[str, Any]:
    """A mapping or dataclass as the object that --json prints, with its schema first."""
    schema = {"schema": f"provision.{name}/1"}
    return {**schema, **to_json(value), **schema}


class Bar:
    """A progress bar of rich, or without one nothing. Without a total it only moves."""

    def __init__(self, shown: rich.progress.Progress | None, title: str, total: int) -> None:
        self.shown = shown
        if shown is not None:
            self._task = shown.add_task(title, total=total or None)

    def advance(self, amount: int) -> None:
        if self.shown is not None:
            self.shown.advance(self._task, amount)


class Console:
    """The output of one command.

    With --json one object is printed, the result or the error, unless -v is given; with -q results,
    warnings and errors. On a terminal, paths in the user's home folder begin with `~`. Credentials in
    addresses are taken out, but for the token of a server that we start (`shows_token`).
    """

    def __init__(
        self, *, as_json: bool = False, verbose: bool = False, quiet: bool = False
    ) -> None:
        self.as_json, self.verbose, self.quiet = as_json, verbose, quiet
        self._has_bar = False
        self._has_printed_object = False
        self.narrative: list[tuple[str, str]] = []  # what was said and warned of

    @property
    def is_narrating(self) -> bool:
        """Whether what happens meanwhile is printed."""
        return not self.quiet and (not self.as_json or self.verbose)

    @property
    def shows_all_on_terminal(self) -> bool:
        """Whether the results go to the terminal on which all before was shown."""
        return self.has_watcher and sys.stdout.isatty()

    @property
    def has_watcher(self) -> bool:
        """Whether somebody sees on a terminal what happens meanwhile."""
        return self.is_narrating and sys.stderr.isatty()

    def info(self, text: str, *, shows_token: bool = False) -> None:
        if not shows_token:
            self.narrative.append(("info", without_credentials(text)))
        if self.is_narrating:
            text = _wrapped(for_stream(text, sys.stderr, shows_token=shows_token), NARRATIVE_INDENT)
            # One write, so that lines of several threads stay lines.
            sys.stderr.write(with_colors(f"{' ' * NARRATIVE_INDENT}{text}\n", sys.stderr))
            sys.stderr.flush()

    def warn(self, text: str) -> None:
        self.narrative.append(("warn", without_credentials(text)))
        text = _wrapped(for_stream(text, sys.stderr), len("warning: "))
        self._print_labeled("warning:", text)

    def _print_labeled(self, label: str, text: str) -> None:
        if _has_colors(sys.stderr):
            label = f"\x1b[{LABELS[label]}m{label}\x1b[0m"
        print(f"{label} {text}", file=sys.stderr, flush=True)

    @contextmanager
    def meter(self, title: str, total: int) -> Iterator[Bar]:
        # One bar at a time: of work within other work, the outer one shows that it goes on.
        if self._has_bar or self.as_json or self.quiet or not sys.stderr.isatty():
            yield Bar(None, title, total)
            return
        import rich.progress as bars
        from rich.console import Console as RichConsole

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
        )
        console = RichConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self._has_bar = True
        try:
            with bars.Progress(*columns, console=console, transient=True) as shown:
                yield Bar(shown, without_credentials(title), total)
        finally:
            self._has_bar = False

    def error(self, error: ProvisionError) -> None:
        """Print an error, its lists on lines of their own; a tool's own output only if verbose."""
        self.error_object(type(error).__name__, error.message, error.exit_code, error.advice)
        text = _wrapped(for_stream(_tidy(str(error)), sys.stderr), len("error: "))
        self._print_labeled("error:", text)
        if self.verbose and error.details:
            print(for_stream(error.details, sys.stderr), file=sys.stderr)

    def error_object(self, kind: str, message: str, exit_code: int, advice: str = "") -> None:
        """Print how a command ends, with --json and before any result; nothing otherwise."""
        if self.as_json and not self._has_printed_object:
            error = {"kind": kind, "message": message, "advice": advice, "exit_code": exit_code}
            with suppress(OSError):  # the error itself is on standard error
                self._print_object("error", error)

    def result(
        self,
        name: str,
        value: Mapping[str, Any] | DataclassInstance,
        text: str | Iterable[str],
        *,
        shows_token: bool = False,
    ) -> None:
        """Print a result: its value as a JSON object, or the text that describes it.

        name: of the object's schema, `provision.NAME/1`. It stands for the schema that a document
        has as a file.
        """
        if self.as_json:
            self._print_object(name, value, shows_token=shows_token)
            return
        lines = text if isinstance(text, str) else "\n".join(text)
        if lines:
            text = for_stream(lines, sys.stdout, shows_token=shows_token)
            print(with_colors(text, sys.stdout))

    def _print_object(self, name: str, value: object, *, shows_token: bool = False) -> None:
        document = json_object(name, value)
        self._has_printed_object = True
        print(json.dumps(document if shows_token else public_document(document), indent=1))

    def document(self, name: str, value: Mapping[str, Any] | DataclassInstance, text: str) -> None:
        """Print a result whose text is a file: byte for byte, unless a terminal shows it."""
        if self.as_json or sys.stdout.isatty():
            self.result(name, value, text.rstrip("\n"))
            return
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
        sys.stdout.write(text)


def for_stream(text: str, stream: IO[str], *, shows_token: bool = False) -> str:
    """Text as it is safe to print; on a terminal with `~` for the user's home folder.

    Only where a shell also reads `~` so: at the beginning of a word, without quotes.
    """
    text = escape_terminal(text if shows_token else without_credentials(text))
    home = os.environ.get("HOME", "").rstrip("/")
    if len(home) < 2 or not stream.isatty():
        return text
    return re.sub(rf"(^|[\s(]){re.escape(home)}(?=/)", r"\1~", text, flags=re.MULTILINE)


def _has_colors(stream: IO[str]) -> bool:
    """Whether a terminal shows it, whose user did not set NO_COLOR."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


def with_colors(text: str, stream: IO[str]) -> str:
    """Text whose states have colors, where there are any."""
    if not _has_colors(stream):
        return text
    for color, states in STATES.items():
        pattern = rf"(?m)(?:^ *|(?<=  )|(?<=: ))(?:{states})(?=  | \(|$)"
        text = re.sub(pattern, f"\x1b[{color}m\\g<0>\x1b[0m", text)
    return text


def _tidy(text: str) -> str:
    """Each line without needless white space; its indent stays."""
    return re.sub(r"(?<=\S)[^\S\n]+", " ", re.sub(r"\s*\n", "\n", text))


def _wrapped(text: str, label_width: int) -> str:
    """A text for the terminal of standard error, of which the first line begins with a label.
    Elsewhere a line stays a line, so that it can be searched for."""
    if not sys.stderr.isatty():
        return text
    from shutil import get_terminal_size

    width = min(get_terminal_size().columns, WIDEST)
    lines = []
    for number, line in enumerate(text.splitlines()):
        label = " " * label_width if number == 0 else ""
        indent = len(line) - len(line.lstrip(" ")) + NARRATIVE_INDENT
        lines.append("\n".join(wrap(label + line, width, indent=indent))[len(label) :])
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], head: Sequence[str], *, width: int | None = None) -> str:
    """Aligned columns of plain text.

    width: of the terminal; the last column is then wrapped to fit. None: every row is one line.
    """
    all_rows = [head, *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    indent = sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = max(NARROWEST_COLUMN, width - indent) if width else max(widths[-1], 1)
    lines = []
    for row in all_rows:
        cells = [cell.ljust(columns) for cell, columns in zip(row[:-1], widths)]
        pieces = wrap(row[-1], room) if width else [row[-1]]
        lines.append("  ".join([*cells, pieces[0]]).rstrip())
        lines += [" " * indent + piece for piece in pieces[1:]]
    return "\n".join(lines)


def wrap(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """A text in lines of at most that width; paths and other long words stay whole. indent: of all
    lines but the first."""
    if width is None:
        return [text]
    import textwrap

    pieces = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return pieces or [""]


def wrap_line(line: str, width: int | None, indent: int = NARRATIVE_INDENT) -> list[str]:
    """A line in pieces of at most that width. Further pieces are indented, deeper than the line."""
    if width is None:
        return [line]
    indent += len(line) - len(line.lstrip(" "))
    return wrap(line, max(width, indent + NARROWEST_COLUMN), indent=indent)


def output_width() -> int | None:
    """The columns of the terminal that results go to; None if they go to a file or a pipe."""
    from provision_runtime.report.table import terminal_width

    return terminal_width()
