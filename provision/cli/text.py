"""Cells of tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap, wrap_line
from provision_runtime.report.text import format_bytes, format_count

if TYPE_CHECKING:
    from provision.workflow.environments import Environment

MACHINES = 2  # are named of each target of a smoke test
# Seconds of a unit, and what an age in it is called.
AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def short_size(count: int | None) -> str:
    """Bytes as `4.9 GiB`, for columns; `-` if not known."""
    return "-" if count is None else format_bytes(count, number_format=".1f")


def short_age(since: float | None, now: float) -> str:
    """The time since then as `3 d`; `-` if not known. Both in seconds since 1970."""
    if since is None:
        return "-"
    seconds = max(0.0, now - since)
    for unit, name in AGES:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return "0 min"


def days_old(day: str, now: float | None = None) -> str:
    """The age of a day such as 2026-11-26."""
    today = date.fromtimestamp(time.time() if now is None else now)
    return f"{format_count(max(0, (today - date.fromisoformat(day)).days), 'day')} old"


def environment_lines(
    environments: Sequence[Environment], *, width: int | None, now: float | None = None
) -> list[str]:
    """A row for each environment, then why those that are not current are not, then the sum. Of
    several projects, each row begins with its project.

    width: of the terminal. A list for a pipe also has each prefix's path.
    """
    if not environments:
        return wrap_line("no environments: `provision build --help` shows how to make one", width)
    now = time.time() if now is None else now
    has_projects = len({environment.project for environment in environments}) > 1
    cells = []
    for environment in environments:
        row = {"project": home_path(environment.project)} if has_projects else {}
        row |= {
            "name": environment.name,
            "state": environment.state,
            "size": short_size(environment.size),
            "age": short_age(environment.installed_at, now),
            "image": "yes" if environment.image == "current" else environment.image or "-",
            "kernel": "yes" if environment.kernel else "-",
            "smoke": short_verdict(environment, now) or "-",
        }
        if width is None:
            row["prefix"] = str(environment.prefix or "-")
        cells.append(row)
    lines = [table([list(row.values()) for row in cells], list(cells[0]), width=width), ""]
    lines += [
        f"{environment.name}: {environment.reason}"
        for environment in environments
        if environment.reason and environment.state != "not installed"
    ]
    total = sum(environment.size or 0 for environment in environments)
    images = sum(environment.image_size for environment in environments)
    text = format_count(len(environments), "environment")
    text += f", {short_size(total)}" if total else ""
    return [*lines, text + (f"; images {short_size(images)}" if images else "")]


def short_verdict(environment: Environment, now: float) -> str:
    """`pass` if every target has that verdict on this machine, else what each has, and where and
    when; empty if nothing was tested."""
    texts: dict[str, list[str]] = {}
    for verdict in environment.verdicts:
        text = f"{verdict.verdict} {verdict.elsewhere}".rstrip()
        if verdict.elsewhere and verdict.measured_at is not None:
            text += f", {short_age(verdict.measured_at, now)} ago"
        texts.setdefault(verdict.target, []).append(text)
    joined = {}
    for target, rows in texts.items():
        more = [f"{len(rows) - MACHINES} more"] if len(rows) > MACHINES else []
        joined[target] = "; ".join([*rows[:MACHINES], *more])
    if len(set(joined.values())) == 1:
        return next(iter(joined.values()))
    return "; ".join(f"{target}: {text}" for target, text in joined.items()) or environment.smoke


def removal_lines(
    rows: Iterable[tuple[str, int, int | None, Path | str]],
    *,
    width: int | None,
    verb_form: str = "",
) -> list[str]:
    """What is removed, or would be, then what that frees.

    rows: of each its kind, its bytes, those of them that no other file shares, if that is known, and
    its name. width: of the terminal.
    """
    cells, size, freed = [], 0, 0
    for kind, bytes, unshared, what in rows:
        sizes = (short_size(bytes), short_size(unshared)) if bytes else ("-", "-")
        cells.append((kind, *sizes, home_path(what)))
        size += bytes if unshared is not None else 0
        freed += unshared or 0
    if not cells:
        return ["nothing to clean"]
    total = f"{verb_form} {format_count(len(cells), 'item')} ({short_size(freed)} of disk space)".strip()
    if freed < size:
        total += "; the rest is shared with caches or other environments"
    lines = table(cells, ("kind", "size", "frees", "what"), width=width).splitlines()
    return [*lines, "", *wrap(total, width)]


def plain_value(value: object) -> str:
    """A value of a request in words."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def fact_lines(facts: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Names and values, the values wrapped and aligned."""
    indent = 2 + max(len(name) for name, _ in facts) + 2
    lines = []
    for name, value in facts:
        first, *rest = wrap(value, width - indent if width else None)
        lines.append(f"  {name:{indent - 4}}  {first}".rstrip())
        lines += [" " * indent + piece for piece in rest]
    return lines


def home_path(path: Path | str) -> str:
    """A path as people read it: `~` for their home folder."""
    try:
        return f"~/{Path(path).relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
