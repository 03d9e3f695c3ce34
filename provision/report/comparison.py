"""Several environments or runs of the test: how to call each, and in what they differ. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provision.report.model import Environment, Measurement

ABSENT = "-"
# A fact in words, or a list of them.
Fact = str | tuple[str, ...]
# Differs between runs by its nature, and is said of each.
OWN = ("host", "hosts", "started", "took", "limits.shm.free_bytes", "limits.shm.device")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which they are not all alike. kind: environment or measurement; a value for each of them."""

    kind: str
    what: str
    values: tuple[str, ...]


def labels(runs: Sequence[tuple[str, ...]]) -> list[str]:
    """The shortest names that tell the runs apart: only the parts in which they differ; else numbered. The last part is the file, which
    is named only where nothing else tells them apart."""
    runs = [(*run[:3], file) for run, file in zip(runs, telling_parts([run[3] for run in runs]))]
    telling = [part for part in range(4) if len({run[part] for run in runs}) > 1]
    chosen = [part for part in telling if part < 3]
    if 3 in telling and len({tuple(run[part] for part in chosen) for run in runs}) < len(runs):
        chosen = [*chosen, 3]
    shown = [", ".join(run[part] for part in chosen) or run[1] for run in runs]
    return [
        f"{label} ({shown[: place + 1].count(label)})" if shown.count(label) > 1 else label
        for place, label in enumerate(shown)
    ]


def telling_parts(files: Sequence[str]) -> list[str]:
    """Of paths what is left without the folders at their beginning, and then the parts at their end, that all have in common."""
    parts = [Path(file).parts for file in files]
    if len(set(parts)) < 2:
        return list(files)
    first = _alike(parts)
    last = _alike([path[first:][::-1] for path in parts])
    return [str(Path(*path[first : len(path) - last])) for path in parts]


def _alike(paths: Sequence[Sequence[str]]) -> int:
    """How many parts at their beginning all paths have in common."""
    return sum(1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths)))


def differences(measurements: Sequence[Measurement]) -> tuple[tuple[Difference, ...], int]:
    """In which facts the runs differ, and how many facts they have in common."""
    if len(measurements) < 2:
        return (), 0
    tables = [
        {**one.about, **dict(_verdicts(one)), **_without_prefix(one.facts)} for one in measurements
    ]
    keys = list(dict.fromkeys(key for table in tables for key in table if key not in OWN))
    rows = {key: [table.get(key, ABSENT) for table in tables] for key in keys}
    unlike = {key: values for key, values in rows.items() if len(set(values)) > 1}
    told = tuple(
        Difference(kind="measurement", what=key, values=tuple(_own(values)))
        for key, values in unlike.items()
    )
    return told, len(rows) - len(unlike)


def _without_prefix(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Where an environment lies is one difference, not one in every path."""
    prefix = facts.get("python.prefix")
    if not isinstance(prefix, str) or prefix in ("", "/", "none"):
        return dict(facts)

    def below(text: str) -> str:
        return text.replace(f"{prefix}/", "PREFIX/")

    return {
        key: below(fact) if isinstance(fact, str) else tuple(map(below, fact))
        for key, fact in facts.items()
    }


def _own(values: Sequence[Fact]) -> Iterator[str]:
    """Of lists what is not in all of them, and how much is."""
    lists = [set(value) for value in values if not isinstance(value, str)]
    shared = set.intersection(*lists) if len(lists) == len(values) else set()
    for value in values:
        if isinstance(value, str) or not shared:
            yield value if isinstance(value, str) else in_words(list(value))
        else:
            alone = [item for item in value if item not in shared]
            yield f"{in_words(alone)}; {len(shared)} in common"


def _verdicts(one: Measurement) -> Iterator[tuple[str, str]]:
    yield "verdict", one.verdict
    yield from ((f"verdict of {phase.name}", phase.verdict) for phase in one.phases)


def environments(found: Sequence[Environment]) -> tuple[Difference, ...]:
    """In which choices, pins and products the environments differ."""
    if len(found) < 2:
        return ()
    # Passports of before do not say what was locked, which is no difference.
    locked = all(any(pin.locked for pin in one.pins) for one in found)
    tables = [{**dict(_choices(one)), **dict(_pins(one, locked=locked))} for one in found]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [
        Difference(
            kind="environment", what=key, values=tuple(table.get(key, ABSENT) for table in tables)
        )
        for key in keys
    ]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _choices(one: Environment) -> Iterator[tuple[str, str]]:
    yield from ((choice.what, choice.value) for choice in one.choices)
    yield from one.products.items()


def _pins(one: Environment, *, locked: bool) -> Iterator[tuple[str, str]]:
    """By package, so that two versions of it stand in one row."""
    for pin in one.pins:
        name = pin.value.partition("::")[2] or pin.value
        end = next((place for place, mark in enumerate(name) if mark in "=<>!~ ["), len(name))
        yield (
            f"pin of {name[:end]} ({pin.what})",
            f"{pin.value}, locked {pin.locked}" if locked and pin.locked else pin.value,
        )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Fact]]:
    """Every single fact of nested facts, by its path: `torch.nccl.loaded`."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    elif isinstance(value, list):
        yield path, tuple(map(in_words, value))
    else:
        yield path, "none" if isinstance(value, Mapping) else in_words(value)


def in_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(in_words, value)) or "none"
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
