"""Run by an interpreter that has torch (test_checkpoint_pickles): objects that were made to run code when they are loaded.

Usage: pickles.py FOLDER. The last line is, as JSON, how the load of each ended, and which of them ran their code.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import manifest


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (str(self._path), "w")


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def before_an_archive(path: Path) -> bytes:
    """Python finds the archive, whose directory is at its end; torch begins at the beginning."""
    return pickle.dumps(Touch(path), protocol=2) + saved(0.1)


def beside_a_harmless_one(path: Path) -> bytes:
    """torch's reader does not tell capitals from small letters."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/DATA.PKL", pickle.dumps(Touch(path), protocol=2))
        archive.writestr("archive/data.pkl", pickle.dumps(0.1, protocol=2))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def plainly(path: Path) -> bytes:
    return saved(Touch(path))


def torchscript(_: Path) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), buffer)
    return buffer.getvalue()


def commit(root: Path, content: bytes) -> None:
    """A checkpoint with one object, as somebody would make it who knows the form."""
    folder = root / "step-000000000001"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{digest}.distcp").write_bytes(content)
    entry = manifest.FileEntry(f"{digest}.distcp", len(content), digest)
    record = manifest.Record(
        entry.name, 0, entry.size, manifest.record_digest(content, "object", (), (), ())
    )
    (folder / manifest.NAME).write_bytes(
        manifest.dumps(manifest.Manifest(1, 1, 0, (entry,), objects={"value": record}))
    )


def ended(root: Path) -> str:
    """What was loaded, or why nothing was."""
    state: dict[str, Any] = {"value": None}
    try:
        checkpoint.load(state, root)
    except (checkpoint.CheckpointError, RuntimeError) as error:
        return str(error)
    return repr(state["value"])


def main(place: Path) -> dict[str, Any]:
    how = {}
    for make in (before_an_archive, beside_a_harmless_one, plainly, torchscript):
        commit(place / make.__name__, make(place / f"{make.__name__}.ran"))
        how[make.__name__] = ended(place / make.__name__)
    return {"ended": how, "ran": sorted(path.stem for path in place.glob("*.ran"))}


if __name__ == "__main__":
    print("found " + json.dumps(main(Path(sys.argv[1]))))
