"""The facts in use: those that provision ships, or newer ones that `provision facts update` put into
the user's data folder, with a lab's own from facts.yml laid over them.

facts.json holds the tables of `data/` in a form that takes 3 ms to read (tools/facts_json.py makes it,
provision/schemas/facts.schema.json describes it). A user's file is checked when it is written; later
only its hash is. One that cannot be used is named, and the shipped facts are used instead.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

from provision.catalog.data_files import DATA, check_sources, load
from provision.core import notices
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.json_text import parse_json
from provision.core.paths import FACTS, LAB, LAB_FACTS, default_folders
from provision.core.schema import schema_error

SCHEMA = 1
# The tables of facts.json. What says which bytes are run (base images, actions of CI) is not among
# them: it changes with provision alone.
TABLES = ("releases", "cuda", "gpus", "nccl", "rules", "cuda_packages", "source_builds")
SHIPPED = "shipped"
DAMAGED = "`provision facts update` replaces it; without it, the shipped facts are used"
Result = TypeVar("Result")


class Document(TypedDict):
    """facts.json."""

    schema: int
    date: str
    tables: dict[str, Any]


class UserFile(TypedDict):
    """facts.json in the user's data folder. document: the text of a facts.json, and sha256 its hash.
    verified: what shows that it is genuine. allow_older: it counts although older than the shipped
    facts."""

    schema: int
    origin: str
    verified: str
    fetched: str
    allow_older: bool
    sha256: str
    document: str


@frozen
class Edition:
    """Which facts are in use.

    sha256: of the document. origin: `shipped`, or where they were fetched from on the day `fetched`.
    from_index: releases of which only a package index says something. lab_file: a lab's own facts.
    """

    date: str
    sha256: str
    origin: str = SHIPPED
    verified: str = SHIPPED
    fetched: str = ""
    from_index: tuple[str, ...] = ()
    lab_file: Path | None = None

    def __str__(self) -> str:
        origin = "shipped with provision" if self.origin == SHIPPED else f"from {self.origin}"
        text = f"facts of {self.date}, {origin}"
        return f"{text}, and {self.lab_file}" if self.lab_file else text


_caches: list[Callable[[], None]] = []


def cached(function: Callable[..., Result]) -> functools._lru_cache_wrapper[Result]:
    """`functools.cache` for what follows from the facts."""
    with_cache = functools.cache(function)
    _caches.append(with_cache.cache_clear)
    return with_cache


def forget() -> None:
    """Read the facts again when they are needed next."""
    _base.cache_clear()
    _tables.cache_clear()
    for clear in _caches:
        clear()


def edition() -> Edition:
    """Which facts are in use."""
    return _base()[0]


def facts_table(name: str) -> Any:
    """A table of the facts in use. Raises InvalidSpec for a lab's facts.yml that is wrong."""
    return _tables()[name]


def facts_text() -> str:
    """The document in use, without a lab's own facts."""
    return _base()[1]


def add_releases(rows: Mapping[str, Any]) -> None:
    """Add releases that were read from a package index, for this process."""
    _tables()["releases"].update(rows)
    for clear in _caches:
        clear()


def parse_document(content: str | bytes, name: str) -> Document:
    """A facts.json from elsewhere, checked. Raises IntegrityError."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise IntegrityError(f"{name} is not JSON: {error}.") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        advice = "Upgrade provision." if schema > SCHEMA else "Make it again with this provision."
        raise IntegrityError(
            f"{name} has facts of schema {schema}; this provision reads schema {SCHEMA}.",
            advice=advice,
        )
    problem = _problem(document, "facts", name)
    if problem:
        raise IntegrityError(f"{name} has no valid facts: {problem}.")
    return cast(Document, document)


def _problem(content: Any, schema: str, name: str) -> str:
    """What makes a document invalid, or a row in it that has no source; empty if it is valid."""
    problem = schema_error(content, schema)
    try:
        if problem is None:
            check_sources(content, name)
    except ValueError as error:
        problem = str(error)
    return problem or ""


@functools.cache
def _base() -> tuple[Edition, str, dict[str, Any]]:
    """The facts without a lab's own: edition, text and tables."""
    text = (DATA / FACTS).read_text(encoding="utf-8")
    document: Document = json.loads(text)
    date = document["date"]
    path = default_folders().facts
    user = None
    try:
        user = read_user_file(path) if path.exists() else None
    except IntegrityError as error:
        notices.warn(f"{error.message} {DAMAGED}.")
    if user is not None and (user[0]["allow_older"] or user[1]["date"] >= date):
        return edition_of(*user), user[0]["document"], user[1]["tables"]
    edition = Edition(date=date, sha256=_sha256(text), lab_file=lab_file())
    return edition, text, document["tables"]


def edition_of(user: UserFile, document: Document) -> Edition:
    """That of a user's file, with the document in it."""
    releases = document["tables"]["releases"]
    return Edition(
        date=document["date"],
        from_index=tuple(name for name, row in releases.items() if row.get("from_index")),
        lab_file=lab_file(),
        **{name: user[name] for name in ("sha256", "origin", "verified", "fetched")},
    )


def read_user_file(path: Path) -> tuple[UserFile, Document]:
    """A user's file, and the document in it. Raises IntegrityError for one that is damaged or of
    another schema."""
    try:
        user: UserFile = json.loads(path.read_text(encoding="utf-8"))
        document: Document = json.loads(user["document"])
        is_whole = user.keys() == UserFile.__annotations__.keys()
        is_whole &= document["tables"].keys() >= set(TABLES)
        is_same = _sha256(user["document"]) == user["sha256"]
        if is_whole and is_same and {user["schema"], document["schema"]} == {SCHEMA}:
            return user, document
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise IntegrityError(
        f"{path} cannot be used: it is damaged, or from another version of provision."
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# A lab's own facts


def lab_file() -> Path | None:
    """facts.yml beside the lab.yml of the working folder, else of the lab that the user joined."""
    templates = default_folders().templates
    folder = templates.parent if templates else Path.cwd()
    is_lab = (folder / LAB).is_file() and (folder / LAB_FACTS).is_file()
    return folder / LAB_FACTS if is_lab else None


def read_lab_facts(path: Path) -> dict[str, Any]:
    """A lab's facts.yml. Raises InvalidSpec for a file that is none."""
    from provision.core.yaml_text import YamlError, parse_yaml, read_source

    try:
        content = parse_yaml(read_source(path))
    except YamlError as error:
        raise InvalidSpec(error.in_file(path)) from error
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}.") from error
    problem = _problem(content, "lab-facts", LAB_FACTS)
    if problem:
        raise InvalidSpec(f"{path}: {problem}.", advice="docs/facts.md describes it.")
    assert isinstance(content, dict)
    return content


@functools.cache
def _tables() -> dict[str, Any]:
    edition, _, tables = _base()
    return dict(tables) if edition.lab_file is None else tables_with(edition.lab_file)


def tables_with(path: Path) -> dict[str, Any]:
    """The facts in use with those of a lab's facts.yml. Raises InvalidSpec if they are not valid."""
    edition, _, tables = _base()
    merged = with_lab_facts(tables, read_lab_facts(path))
    problem = schema_error({"schema": SCHEMA, "date": edition.date, "tables": merged}, "facts")
    if problem is not None:
        raise InvalidSpec(
            f"{path}: together with the facts it is not valid: {problem}.",
            advice="docs/facts.md describes it.",
        )
    return merged


def blank(name: str) -> dict[str, Any]:
    """A `release`, or a `wheel`, of which nothing is known."""
    row: dict[str, Any] = load("blank.yml")[name]
    return row


def with_lab_facts(tables: Mapping[str, Any], lab: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with a lab's facts over them: mappings are joined, lists follow one another."""
    merged = copy.deepcopy(dict(tables))
    for version, row in lab.get("releases", {}).items():
        release = merged["releases"].setdefault(version, blank("release"))
        for tag in row.get("wheels", {}):
            release["wheels"].setdefault(tag, blank("wheel"))
        _join(release, row)
    _join(merged["cuda"], lab.get("cuda", {}))
    names = {rule["id"] for rule in lab.get("rules", ())}
    merged["rules"] = [rule for rule in merged["rules"] if rule["id"] not in names]
    for name in ("rules", "gpus"):
        merged[name] += lab.get(name, ())
    return merged


def _join(row: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(row.get(key), dict):
            _join(row[key], value)
        else:
            row[key] = value
