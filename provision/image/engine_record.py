"""Which images this user's provision loaded into which Docker engine.

Several users may share an engine, and their environments have the same names, because names come
from the request. So a name or a label does not tell whose an image is; this record does. It is next
to the image's layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.paths import make_private_directory
from provision.core.schema import InvalidDocument, parse_document


@frozen
class EngineRecord:
    """What was loaded into one engine (provision/schemas/engine-images.schema.json).

    references: the tags that we made, with the image's id in the engine. images: the ids of all
    images that we sent and have not removed.
    """

    references: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()


def record_path(layout: Path) -> Path:
    return layout.parent / f".{layout.name}.engine.json"


def read_record(layout: Path, engine: str) -> EngineRecord:
    """The record of a layout for the engine with that id. Raises IntegrityError if it is damaged."""
    return _read_engines(layout).get(engine, EngineRecord())


def write_record(layout: Path, engine: str, record: EngineRecord) -> None:
    """Replace the record for one engine; an empty record is removed."""
    engines = _read_engines(layout)
    engines.pop(engine, None)
    if record.references or record.images:
        engines[engine] = record
    path = record_path(layout)
    if engines:
        make_private_directory(path.parent)
        rows = {engine: vars(record) for engine, record in engines.items()}
        atomic_write(path, json.dumps({"schema": 1, "engines": rows}, indent=1) + "\n")
    else:
        path.unlink(missing_ok=True)


def _read_engines(layout: Path) -> dict[str, EngineRecord]:
    path = record_path(layout)
    try:
        document = parse_document(path.read_bytes(), "engine-images")
    except FileNotFoundError:
        return {}
    except InvalidDocument as error:
        raise IntegrityError(
            f"{path} is damaged: {error}.",
            advice=(
                "This file only lists which images of the Docker engine are yours. Delete it, "
                "and remove those images with `docker rmi`."
            ),
        ) from error
    return {
        engine: EngineRecord(references=row["references"], images=tuple(row["images"]))
        for engine, row in document["engines"].items()
    }
