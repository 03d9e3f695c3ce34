"""Results as text or JSON on standard output, narrative and progress on standard error. The only module that styles output.

Colors and bars appear only on a terminal; NO_COLOR is respected (rich does). `--json` prints the very values that the text shows.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.core.errors import ProvisionError
from provision.core.types import BuildResult, MeterContext, Outcome, SmokeResult
from provision_runtime.report.text import escape_terminal

if TYPE_CHECKING:
    import rich.console
    import rich.progress

    from provision.commands.mirror import Mirrored
    from provision.lockfile.differences import LockDiff
    from provision.lockfile.verify import VerifyReport


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


class Bar:
    """A progress bar, or nothing where nobody watches."""

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
    """One run's output. With --json there are results and errors only, unless -v."""

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json, self.verbose = as_json, verbose

    def _rich(self) -> rich.console.Console:
        from rich.console import Console as RichConsole

        return RichConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)

    def say(self, text: str) -> None:
        if not self.as_json or self.verbose:
            sys.stderr.write(
                f"  {escape_terminal(text)}\n"
            )  # one write: lines of several threads stay lines
            sys.stderr.flush()

    def warn(self, text: str) -> None:
        self._rich().print(f"[yellow]warning:[/yellow] {_escape(escape_terminal(text))}")

    def meter(self, title: str, total: int) -> MeterContext:
        watched = sys.stderr.isatty() and not self.as_json
        return Bar(title, total, self._rich() if watched else None)

    def error(self, error: ProvisionError, *, as_object: bool = True) -> None:
        """One line; a solver's or tool's own words only when asked for. With --json an object too, unless a result was printed."""
        if self.as_json and as_object:
            print(
                json.dumps(
                    {
                        "error": type(error).__name__,
                        "message": error.message,
                        "advice": error.advice,
                    }
                )
            )
        self._rich().print(
            f"[red]error:[/red] {_escape(escape_terminal(' '.join(str(error).split())))}"
        )
        if self.verbose and error.details:
            print(escape_terminal(error.details), file=sys.stderr)

    def result(self, value: Any, text: str | Iterable[str]) -> None:
        """Show a result: its values as JSON, or the text made of them."""
        if self.as_json:
            print(json.dumps(plain(value), indent=1))
        else:
            shown = text if isinstance(text, str) else "\n".join(text)
            if shown:
                print(escape_terminal(shown))


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """Columns of plain text, aligned."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in [head, *rows]
    )
    return "\n".join(lines)


def build_summary(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """What was made, where, in how many seconds, and what to do with it."""
    resolution = result.resolution
    carries = [f"NCCL {resolution.nccl}"] if resolution.nccl else []
    carries += [f"driver >= {resolution.driver_floor}"] if resolution.driver_floor else []
    head = f"{result.name}: torch {resolution.local_version}, Python {resolution.python}"
    rows = [
        (record.stage, record.status, f"{record.seconds:.1f} s", record.detail)
        for record in result.stages
    ]
    lines = [", ".join([head, *carries]), "", table(rows, ("stage", "status", "time", "what")), ""]
    for found in result.smoke:
        lines += [*smoke_lines(found), ""]
    return [*lines, *next_commands(result, docker_run)]


def smoke_lines(result: SmokeResult) -> list[str]:
    """A smoke test: where it ran, its verdict, on what; then a line per phase, and for each finding what happened and what to do."""
    report = result.report
    ran = f"{report.get('world_size')} rank{'' if report.get('world_size') == 1 else 's'}, {report.get('backend')} on {report.get('device')}"
    return [
        f"smoke test in the {result.where}: {result.verdict} ({ran})",
        *phase_lines(report, "  "),
        f"  evidence: {result.evidence}",
    ]


def phase_lines(report: Mapping[str, Any], indent: str) -> list[str]:
    """The phases of a smoke report as the test itself shows them, as wide as the terminal."""
    from provision_runtime.report import table
    from provision_runtime.report.model import SCHEMA

    if report.get("schema") != SCHEMA:
        told = f"its report is of schema {report.get('schema')!r}, which cannot be shown: run the test again"
        return [f"{indent}{told}"]
    width = table.terminal_width()
    return [
        f"{indent}{line}" for line in table.lines(report, width - len(indent) if width else None)
    ]


def next_commands(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """Commands to copy."""
    prefix = shlex.quote(str(result.prefix.path))
    lines = [
        "next:",
        f"  shell     export PATH={prefix}/bin:$PATH CONDA_PREFIX={prefix} PYTHONNOUSERSITE=1",
        f"  job       {prefix}/bin/torchrun --standalone --nproc-per-node={'gpu' if result.resolution.cuda else '2'} train.py",
    ]
    if result.kernel:
        lines.append(
            f'  notebook  jupyter lab, then choose the kernel "{result.kernel.display_name}"'
        )
    if result.image:
        lines.append(f"  image     {shlex.join(docker_run)}")
    return [*lines, f"  evidence  provision passport show {result.name}"]


def outcome_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What became of many environments: diffs first, then a row for each, then the sum."""
    diffs = [outcome.diff.rstrip() for outcome in outcomes if outcome.diff]
    rows = [
        (outcome.name, outcome.status, f"{outcome.seconds:.1f} s", outcome.detail)
        for outcome in outcomes
    ]
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed" if failed else f"all {len(outcomes)} are fine"
    return [*diffs, table(rows, ("environment", "status", "time", "what")), "", verdict]


def explanation_lines(explanation: Any) -> list[str]:
    """Why an environment is what it is, for people: what, its value, and below it why and where that is known from."""
    lines = [explanation.name]
    pins = [(pin.manager, pin.requirement, pin.reason, pin.source) for pin in explanation.pins]
    parts = [
        (title, _told(getattr(explanation, title.replace(" ", "_"))))
        for title in ("choices", "rules", "warnings", "not chosen")
    ]
    for title, rows in [parts[0], ("pins", pins), *parts[1:]]:
        if rows:
            width = max(len(row[0]) for row in rows)
            lines += ["", title]
            for what, value, reason, source in rows:
                lines += [
                    f"  {what:{width}}  {value}".rstrip(),
                    f"  {'':{width}}    {reason}" + (f" ({source})" if source else ""),
                ]
    machine = ", ".join(
        f"{name} {version}" for name, version in explanation.virtual_packages.items()
    )
    return [*lines, "", f"solved for {', '.join(explanation.platforms)} with {machine}"]


def _told(choices: Iterable[Any]) -> list[tuple[str, str, str, str]]:
    return [(choice.what, choice.value, choice.reason, choice.source) for choice in choices]


def passport_lines(passport: Mapping[str, Any]) -> list[str]:
    """A passport for people: what was asked, what came of it and why, and what was measured."""
    asked = ", ".join(f"{key} {value}" for key, value in passport["request"].items())
    lines = [
        f"{passport['name']} ({passport['made_by']}, {passport['written_at']})",
        f"asked for: {asked}",
        "",
    ]
    lines += [
        table(
            [(r["what"], str(r["value"]), r["reason"], r["source"]) for r in passport["reasons"]],
            ("choice", "value", "reason", "source"),
        ),
        "",
    ]
    for found in passport.get("warnings", ()):
        lines.append(
            f"warning {found['what']}: {found['reason']} ({found['source']}). {found['value']}".rstrip()
        )
    lines += [""] if passport.get("warnings") else []
    locked = passport["lock"]
    lines.append(
        f"lock    {locked['sha256'][:16]}: {locked['packages']} packages{'' if locked['portable'] else ', not portable'}"
    )
    lines.append(f"prefix  {passport['prefix']['path']}")
    if passport["image"]:
        lines.append(
            f"image   {passport['image']['reference']} ({passport['image']['manifest_digest']})"
        )
    if passport["kernel"]:
        lines.append(f"kernel  {passport['kernel']['name']}")
    for place, found in passport["smoke"].items():
        lines.append(f"smoke   {place}: {found['verdict']} on {found['measured_on']['host']}")
        lines += phase_lines(found["report"], "        ")
    return lines


def verified_lines(found: Sequence[VerifyReport]) -> list[str]:
    """One finding per line, then a line for each lock."""
    lines = []
    for lock in found:
        lines += [
            f"{lock.lock}: {one.platform} {one.package} {one.message}" for one in lock.findings
        ]
    for lock in found:
        count = len(lock.findings)
        said = f"{count} {'finding' if count == 1 else 'findings'}" if count else "nothing wrong"
        lines.append(f"{lock.lock}: {lock.packages} packages, {said}")
    return lines


def compared_lines(found: LockDiff) -> list[str]:
    """What changed, in a table for each platform and manager, and the size of it in one line."""
    lines = list(found.about)
    for heading in dict.fromkeys((one.platform, one.manager) for one in found.differences):
        rows = [
            (
                one.change,
                one.package,
                f"{one.before} -> {one.after}"
                if one.before and one.after
                else one.before or one.after,
            )
            for one in found.differences
            if (one.platform, one.manager) == heading
        ]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines += [f"{heading[0]}, {heading[1]}"]
        lines += [
            f"  {change.ljust(widths[0])}  {package.ljust(widths[1])}  {said}"
            for change, package, said in rows
        ]
    return [*lines, size_of(found)]


def size_of(found: LockDiff) -> str:
    """The size of a change."""
    counts = Counter(one.change for one in found.differences)
    if not counts:
        return f"{found.after} locks the same {found.packages} packages as {found.before}"
    told = ", ".join(f"{count} {change}" for change, count in sorted(counts.items()))
    return f"{len(found.differences)} of {found.packages} packages differ: {told}"


def mirrored_lines(found: Mirrored) -> list[str]:
    """What a mirror holds and what was done; a preview lists each file."""
    if found.dry_run:
        lines = [f"would fetch {path}" for path in found.fetched] + [
            f"would remove {path}" for path in found.removed
        ]
        return [
            *lines,
            f"{found.folder}: {len(found.fetched)} of {found.files} files to fetch, {len(found.removed)} to remove",
        ]
    done = f"{len(found.fetched)} fetched, {found.kept} kept" + (
        f", {len(found.removed)} removed" if found.removed else ""
    )
    return [f"{found.folder}: {found.files} files, {found.bytes / 1e6:.1f} MB ({done})"]
