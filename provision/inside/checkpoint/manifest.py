"""The manifest of a checkpoint: step, world size, and size and SHA-256 of every file. JSON, so no pickle to inspect."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1
NAME = "manifest.json"


class CheckpointError(Exception):
    """Something about a checkpoint is not as it must be; the text names the file or the rank."""


class DamagedFile(CheckpointError):
    """A file of a checkpoint is not what was committed."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path} is damaged: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True)
class FileEntry:
    name: str
    size: int
    sha256: str
    rank: int


@dataclass(frozen=True)
class Manifest:
    step: int
    world_size: int
    files: list[FileEntry]

    def entry(self, name: str) -> FileEntry:
        for entry in self.files:
            if entry.name == name:
                return entry
        held = ", ".join(entry.name for entry in self.files)
        raise CheckpointError(f"the checkpoint of step {self.step} holds no file {name!r}; it holds {held}")


def describe(name: str, content: bytes, rank: int) -> FileEntry:
    return FileEntry(name, len(content), hashlib.sha256(content).hexdigest(), rank)


def dumps(manifest: Manifest) -> bytes:
    """The manifest with a digest of itself, so that a flipped bit in it is noticed too."""
    body = {"schema": SCHEMA, **asdict(manifest)}
    return (json.dumps({**body, "sha256": _digest(body)}, indent=1, sort_keys=True) + "\n").encode()


def loads(content: bytes, path: object) -> Manifest:
    try:
        body = json.loads(content)
        stated = body.pop("sha256")
        if body["schema"] != SCHEMA:
            raise CheckpointError(f"{path} has schema {body['schema']!r}; this code reads schema {SCHEMA}")
        if stated != _digest(body):
            raise DamagedFile(path, "its digest does not match its content")
        return _manifest(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedFile(path, f"it is not a manifest ({type(error).__name__}: {error})") from error


def _manifest(body: dict[str, Any]) -> Manifest:
    return Manifest(body["step"], body["world_size"], [FileEntry(**entry) for entry in body["files"]])


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
