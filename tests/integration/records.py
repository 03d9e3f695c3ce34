"""Conda's rules said once more, without a solver: whether an environment satisfies every line of its packages' records, and whether a
request can be satisfied at all. Reads the raw repodata.json; requirements are matched by conda's own MatchSpec (conda-lock's copy),
which shares no code with py-rattler."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core.platforms import Platform
from provision.core.types import LockedPackage

# How far impossibility is followed: what the records of a pin need, what that needs, and once more.
DEPTH = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """One package file as its channel describes it, under conda's names."""

    name: str
    version: str
    build: str
    build_number: int
    fn: str
    url: str  # channel/subdir/file
    channel: str = ""
    subdir: str = ""
    sha256: str = ""
    md5: str = ""
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()


@functools.cache
def parsed(line: str) -> Any:
    from conda_lock._vendor.conda.models.match_spec import MatchSpec

    return MatchSpec(line)  # type: ignore[no-untyped-call]


@functools.cache
def name_of(line: str) -> str:
    return str(parsed(line).name)


@functools.cache
def fits(line: str, record: Record) -> bool:
    return bool(parsed(line).match(record))


def split(requirement: str) -> tuple[str | None, str]:
    """`channel::requirement` -> both."""
    channel, separator, rest = requirement.rpartition("::")
    return (channel if separator else None), rest


def virtual(packages: Iterable[tuple[str, str]]) -> list[Record]:
    """What a machine offers, as records."""
    return [_virtual(name, version) for name, version in packages]


@functools.cache
def _virtual(name: str, version: str) -> Record:
    return Record(
        name=name, version=version, build="0", build_number=0, fn=name, url=f"{name}={version}"
    )


class Channels:
    """The records of channels for one platform, in order of priority."""

    def __init__(self, root: Path, names: Sequence[str], platform: Platform) -> None:
        self._by_name: dict[str, dict[str, list[Record]]] = {
            name: _read(root / name, platform) for name in names
        }
        self._by_url = {
            record.url: record
            for named in self._by_name.values()
            for records in named.values()
            for record in records
        }

    def find(self, package: LockedPackage) -> Record | None:
        return self._by_url.get("/".join(package.url.split("/")[-3:]))

    def candidates(self, name: str, channel: str | None = None) -> list[Record]:
        """Those of the first channel that has the name at all: strict channel priority."""
        named = [channel] if channel else self._by_name
        return next(
            (self._by_name[item][name] for item in named if name in self._by_name[item]), []
        )


@functools.cache
def _read(channel: Path, platform: Platform) -> dict[str, list[Record]]:
    result = defaultdict(list)
    for subdir in (platform, "noarch"):
        path = channel / subdir / "repodata.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        for kind in ("packages", "packages.conda"):
            for file, row in content.get(kind, {}).items():
                result[row["name"]].append(_record(row, file, channel.name, subdir))
    return dict(result)


def _record(row: Mapping[str, Any], file: str, channel: str, subdir: str) -> Record:
    return Record(
        name=row["name"],
        version=row["version"],
        build=row["build"],
        build_number=row["build_number"],
        fn=file,
        url=f"{channel}/{subdir}/{file}",
        channel=channel,
        subdir=subdir,
        sha256=row.get("sha256", ""),
        md5=row.get("md5", ""),
        depends=tuple(row.get("depends", ())),
        constrains=tuple(row.get("constrains", ())),
    )


def mistakes(
    packages: Sequence[LockedPackage],
    requirements: Sequence[str],
    machine: Sequence[Record],
    channels: Channels,
) -> Iterator[str]:
    """Everything that is wrong with an environment, by its packages' own records."""
    records = {package.name: channels.find(package) for package in packages}
    if len(records) != len(packages):
        yield "a name stands here twice"
    for package in packages:
        yield from _record_mistakes(package, records[package.name])
    installed = {name: record for name, record in records.items() if record is not None} | {
        record.name: record for record in machine
    }
    for requirement in requirements:
        channel, line = split(requirement)
        result = installed.get(name_of(line))
        if result is None or not fits(line, result) or channel not in (None, result.channel):
            yield f"{requirement} is asked for; there is {result.url if result else 'none'}"
    for record in installed.values():
        yield from _line_mistakes(record, installed)
    yield from (
        f"nothing needs {name}" for name in records.keys() - _reachable(requirements, installed)
    )


def _record_mistakes(package: LockedPackage, record: Record | None) -> Iterator[str]:
    if record is None:
        yield f"{package.url} is in no repodata.json"
        return
    identity = (package.name, package.version, package.build, package.sha256, package.md5)
    if identity != (record.name, record.version, record.build, record.sha256, record.md5):
        yield f"{package.url} is not as its record says"
    if record.subdir not in (package.platform, "noarch"):
        yield f"{package.url} is not for {package.platform}"


def _line_mistakes(record: Record, installed: Mapping[str, Record]) -> Iterator[str]:
    for line in record.depends:
        needed = installed.get(name_of(line))
        if needed is None or not fits(line, needed):
            yield f"{record.fn} needs {line}; there is {needed.fn if needed else 'none'}"
    for line in record.constrains:
        bound = installed.get(name_of(line))
        if bound is not None and not fits(line, bound):
            yield f"{record.fn} allows only {line}; there is {bound.fn}"


def _reachable(requirements: Sequence[str], installed: Mapping[str, Record]) -> set[str]:
    waiting, visited = [name_of(split(requirement)[1]) for requirement in requirements], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in visited and name in installed:
            visited.add(name)
            waiting += map(name_of, installed[name].depends)
    return visited


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """A requirement that no record can satisfy beside the others, and for each record that fits it, the line that cannot be."""

    requirement: str
    why: Mapping[str, str]

    @property
    def is_missing(self) -> bool:
        """Whether there is no record that fits it at all."""
        return not self.why


def impossible(
    requirements: Sequence[str], machine: Sequence[Record], channels: Channels
) -> list[Impossible]:
    """Proofs that a request cannot be satisfied; without one it may be possible. Not complete, but never wrong: a record is out only
    if one of its lines fits no record that is itself not out, among those that the request leaves of that name."""
    world = _World(requirements, machine, channels)
    domains = {
        requirement: world.domain(name_of(split(requirement)[1])) for requirement in requirements
    }
    missing = [
        Impossible(requirement=requirement, why={})
        for requirement, domain in domains.items()
        if not domain
    ]
    if missing:
        return missing
    reasons = {
        requirement: {record.fn: world.obstacle(record, DEPTH) for record in domain}
        for requirement, domain in domains.items()
    }
    return [
        Impossible(requirement=requirement, why=why)
        for requirement, why in reasons.items()
        if all(why.values())
    ]


class _World:
    """One request: what it leaves of each name, and which records of that are out."""

    def __init__(
        self, requirements: Sequence[str], machine: Sequence[Record], channels: Channels
    ) -> None:
        self._pins: dict[str, list[str]] = defaultdict(list)
        self._from: dict[str, str] = {}
        for requirement in requirements:
            channel, line = split(requirement)
            self._pins[name_of(line)].append(line)
            if channel:
                self._from[name_of(line)] = channel
        self._machine = {record.name: record for record in machine}
        self._channels = channels
        self._domains: dict[str, list[Record]] = {}
        self._obstacles: dict[tuple[Record, int], str] = {}
        self._blocked: dict[tuple[str, int], bool] = {}

    def domain(self, name: str) -> list[Record]:
        """The records of a name that the request allows."""
        if name not in self._domains:
            if name.startswith("__"):
                result = [self._machine[name]] if name in self._machine else []
            else:
                result = self._channels.candidates(name, self._from.get(name))
            self._domains[name] = [
                record
                for record in result
                if all(fits(line, record) for line in self._pins.get(name, ()))
            ]
        return self._domains[name]

    def obstacle(self, record: Record, depth: int) -> str:
        """The line of a record that cannot be satisfied; empty if none was found."""
        key = (record, depth)
        if key not in self._obstacles:
            self._obstacles[key] = self._look(record, depth)
        return self._obstacles[key]

    def _look(self, record: Record, depth: int) -> str:
        for line in record.constrains:
            candidates = self.domain(name_of(line)) if name_of(line) in self._pins else []
            if candidates and not any(fits(line, other) for other in candidates):
                return f"constrains {line}"
        return next((f"depends {line}" for line in record.depends if self.blocked(line, depth)), "")

    def blocked(self, line: str, depth: int) -> bool:
        """Whether no record that is not out satisfies a line."""
        key = (line, depth)
        if key not in self._blocked:
            fitting = (other for other in self.domain(name_of(line)) if fits(line, other))
            self._blocked[key] = all(depth and self.obstacle(other, depth - 1) for other in fitting)
        return self._blocked[key]
