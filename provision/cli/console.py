"""Results as text or JSON on standard output; narrative and progress on standard error.

The only module that styles output. Colors and bars appear only on a terminal, and rich respects
NO_COLOR. `--json` prints the same values that the text shows. What the text says is in `format/`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.core.errors import ProvisionError
from provision.core.types import MeterContext
from provision_runtime.report.text import escape_terminal

if TYPE_CHECKING:
    import rich.console
    import rich.progress


def to_json(value: Any) -> Any:
    """A value in types that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


class Bar:
    """A progress bar; without a console it shows nothing."""

    def __init__(self, title: str, total: int, console: rich.console.Console | None) -> None:
        self._title, self._total, self._console = title, total, console
        self._progress: rich.progress.Progress | None = None

    def __enter__(self) -> Bar:
        if self._console is not None:
            import rich.progress as bars

            self._progress = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                bars.TaskProgressColumn(),
                bars.TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=self._total)
        return self

    def advance(self, amount: int) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, amount)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()


class Console:
    """The output of one command.

    With --json only results and errors are printed, unless -v is given.
    """

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json, self.verbose = as_json, verbose

    def _rich(self) -> rich.console.Console:
        from rich.console import Console as RichConsole

        return RichConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)

    def say(self, text: str) -> None:
        if not self.as_json or self.verbose:
            # One write, so that lines of several threads stay lines.
            sys.stderr.write(f"  {escape_terminal(text)}\n")
            sys.stderr.flush()

    def warn(self, text: str) -> None:
        self._rich().print(f"[yellow]warning:[/yellow] {_escape(escape_terminal(text))}")

    def meter(self, title: str, total: int) -> MeterContext:
        is_visible = sys.stderr.isatty() and not self.as_json
        return Bar(title, total, self._rich() if is_visible else None)

    def error(self, error: ProvisionError, *, as_object: bool = True) -> None:
        """Print an error on one line, with a tool's own output only if verbose.

        as_object: with --json print an object too; not to be done after a result was printed.
        """
        if self.as_json and as_object:
            document = {
                "error": type(error).__name__,
                "message": error.message,
                "advice": error.advice,
            }
            print(json.dumps(document))
        line = escape_terminal(" ".join(str(error).split()))
        self._rich().print(f"[red]error:[/red] {_escape(line)}")
        if self.verbose and error.details:
            print(escape_terminal(error.details), file=sys.stderr)

    def result(self, value: Any, text: str | Iterable[str]) -> None:
        """Print a result: its value as JSON, or the text that describes it."""
        if self.as_json:
            print(json.dumps(to_json(value), indent=1))
            return
        lines = text if isinstance(text, str) else "\n".join(text)
        if lines:
            print(escape_terminal(lines))


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """Aligned columns of plain text."""
    all_rows = [head, *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    lines = []
    for row in all_rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
