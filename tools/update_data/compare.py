"""Compares rows that the index proves with the table: what to add and change, what contradicts,
what is no longer proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A row with such a source came from an index, so the index may change it; a person wrote every
# other row.
FROM_INDEX = "PyPI "

PROVABLE = ("index_default", "torchvision", "torchaudio", "triton")

TITLES = {
    "added": "new",
    "changed": "changed",
    "conflicts": "CONFLICT, left as it is for a person to decide",
    "unproven": "no longer proven by the index, left as it is",
    "unread": "could not be read",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Facts that stand in one mapping of the file, with one source."""

    path: tuple[str, ...]
    values: Mapping[str, Any]
    source: str


@dataclass(kw_only=True)
class Findings:
    """The result of a comparison. Only `rows` is written."""

    rows: list[Row] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for name, title in TITLES.items():
            for description in getattr(self, name):
                yield f"{title}: {description}"

    @property
    def need_a_person(self) -> bool:
        return bool(self.conflicts or self.unproven or self.unread)


def rows_of(release: str, facts: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of what an index says of a release."""
    for name in (*PROVABLE, "wheels"):
        for path, entry in _entries(facts[name], (release, name)):
            if entry["source"] is not None:
                values = {
                    key: value
                    for key, value in entry.items()
                    if key != "source" and not isinstance(value, Mapping)
                }
                yield Row(path=path, values=values, source=entry["source"])


def compare(rows: Sequence[Row], table: Mapping[str, Any], findings: Findings) -> None:
    """Compare each row with its entry in the table."""
    for row in rows:
        entry: Any = table
        for key in row.path:
            entry = entry.get(key) if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping):
            _compare_values(row, entry, findings)
            continue
        facts = [f"{key} {value}" for key, value in row.values.items() if value is not None]
        if facts:
            findings.rows.append(row)
            findings.added.append(f"{' '.join(row.path)}: {', '.join(facts)} ({row.source})")


def unproven(
    table: Mapping[str, Any],
    rows: Sequence[Row],
    releases: Sequence[str],
    findings: Findings,
    opened_wheels: bool = False,
) -> None:
    """Find rows of these releases that came from an index, and that nothing on this one says any
    more.

    opened_wheels: wheels were opened for what is not in their metadata; else nothing is said about
    such rows.
    """
    proven = {row.path for row in rows if any(value is not None for value in row.values.values())}
    for release in releases:
        for path, entry in _entries(table.get(release, {}), (release,)):
            was_read = opened_wheels or path[-1] != "architectures"
            if was_read and _is_from_index(entry) and path not in proven and path[1] in PROVABLE:
                findings.unproven.append(f"{' '.join(path)} ({entry['source']})")


def _compare_values(row: Row, entry: Mapping[str, Any], findings: Findings) -> None:
    name, source = " ".join(row.path), entry.get("source")
    is_from_index = _is_from_index(entry)
    changes: dict[str, Any] = {}
    for key, value in row.values.items():
        current = entry.get(key)
        if value == current:
            continue
        if value is None:
            if is_from_index:
                findings.unproven.append(f"{name}: {key} {current} ({source})")
        elif current is None or is_from_index:
            changes[key] = value
            findings.changed.append(f"{name}: {key} {current} -> {value} ({row.source})")
        else:
            findings.conflicts.append(
                f"{name}: {key} is {current} by {source}, but {value} by {row.source}"
            )
    has_lost_python = "python" in entry and "python" not in row.values
    if has_lost_python and row.path[-1] == "torchvision" and is_from_index:
        findings.unproven.append(f"{name}: python {list(entry['python'])} ({source})")
    if changes:
        findings.rows.append(Row(path=row.path, values=changes, source=row.source))


def _is_from_index(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("source") or "").startswith(FROM_INDEX)


def _entries(
    entry: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every entry with a source, with its path."""
    if "source" in entry:
        yield path, entry
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _entries(value, (*path, key))
