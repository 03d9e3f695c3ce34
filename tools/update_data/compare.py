"""Rows that the index proves, held against the table: what to add and change, what contradicts, what is no longer proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from update_data.wheels import Row

# A row with such a source came from an index, so the index may change it; every other row was found by a person.
READ_OFF = "PyPI "

PROVABLE = ("index_default", "torchvision", "torchaudio", "triton")


@dataclass(kw_only=True)
class Findings:
    """What came of a comparison. Only `rows` is written."""

    rows: list[Row] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        titles = {
            "added": "new",
            "changed": "changed",
            "conflicts": "CONFLICT, left as it is for a person to decide",
            "unproven": "no longer proven by the index, left as it is",
            "unread": "could not be read",
        }
        for name, title in titles.items():
            for one in getattr(self, name):
                yield f"{title}: {one}"

    @property
    def need_a_person(self) -> bool:
        return bool(self.conflicts or self.unproven or self.unread)


def compare(rows: Sequence[Row], table: Mapping[str, Any], into: Findings) -> None:
    """Hold each row against its place in the table."""
    for row in rows:
        place = _at(table, row.path)
        if place is None:
            stated = {key: value for key, value in row.values.items() if value is not None}
            if stated:
                into.rows.append(row)
                into.added.append(f"{_shown(row.path)}: {_words(stated)} ({row.source})")
        else:
            _compare_values(row, place, into)


def unproven(
    table: Mapping[str, Any],
    rows: Sequence[Row],
    releases: Sequence[str],
    into: Findings,
    looked_inside: bool = False,
) -> None:
    """Rows of these releases that were read off an index once, and that nothing on this one says any more.

    looked_inside: wheels were opened for what is not in their metadata; else nothing is said about such rows.
    """
    proven = {row.path for row in rows if any(value is not None for value in row.values.values())}
    for release in releases:
        for path, place in _rows(table.get(release, {}), (release,)):
            asked = looked_inside or path[-1] != "architectures"
            if asked and _read_off(place) and path not in proven and path[1] in PROVABLE:
                into.unproven.append(f"{_shown(path)} ({place['source']})")


def _compare_values(row: Row, place: Mapping[str, Any], into: Findings) -> None:
    was_read_off = _read_off(place)
    new: dict[str, Any] = {}
    for key, value in row.values.items():
        have = place.get(key)
        if value == have:
            continue
        if value is None:
            if was_read_off:
                into.unproven.append(f"{_shown(row.path)}: {key} {have} ({place.get('source')})")
        elif have is None or was_read_off:
            new[key] = value
            into.changed.append(f"{_shown(row.path)}: {key} {have} -> {value} ({row.source})")
        else:
            into.conflicts.append(
                f"{_shown(row.path)}: {key} is {have} by {place.get('source')}, but {value} by {row.source}"
            )
    if (
        "python" in place
        and "python" not in row.values
        and row.path[-1] == "torchvision"
        and was_read_off
    ):
        into.unproven.append(
            f"{_shown(row.path)}: python {list(place['python'])} ({place.get('source')})"
        )
    if new:
        into.rows.append(Row(path=row.path, values=new, source=row.source))


def _read_off(place: Mapping[str, Any]) -> bool:
    return str(place.get("source") or "").startswith(READ_OFF)


def _at(table: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any] | None:
    place: Any = table
    for key in path:
        place = place.get(key) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


def _rows(
    place: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    if "source" in place:
        yield path, place
    for key, value in place.items():
        if isinstance(value, Mapping):
            yield from _rows(value, (*path, key))


def _shown(path: Sequence[str]) -> str:
    return " ".join(path)


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
