"""Which checkpoints a root holds, which of them is the latest, and what dead writers left. Works without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import layout, manifest

if TYPE_CHECKING:
    from .backends import Backend


def committed(backend: Backend) -> list[layout.Name]:
    """By step and generation. Of a step that is being saved once more there may be several for a moment."""
    return sorted(name for name in map(layout.parse, backend.folders()) if name)


def steps(backend: Backend) -> list[layout.Name]:
    """The newest generation of every step, in order of steps."""
    return list({name.step: name for name in committed(backend)}.values())


def read_manifest(backend: Backend, folder: str) -> manifest.Manifest:
    """Raises DamagedFile where it is missing, not what was committed, or of another step than its folder."""
    path = f"{backend.root}/{folder}/{manifest.NAME}"
    try:
        found = manifest.loads(backend.read(folder, manifest.NAME), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise manifest.DamagedFile(path, "it is missing") from error
    name = layout.parse(folder)
    if name is not None and name.step != found.step:
        raise manifest.DamagedFile(path, f"it is of step {found.step}, not {name.step}")
    return found


def manifest_if_whole(backend: Backend, folder: str) -> manifest.Manifest | None:
    try:
        return read_manifest(backend, folder)
    except (manifest.CheckpointError, OSError):
        return None


def latest(backend: Backend) -> str | None:
    """The folder that `latest` names, or, where that is not there, the one that was committed last; None where there is none."""
    present = {str(name) for name in committed(backend)}
    named = backend.latest()
    if named in present:
        return named
    return next(iter(by_age(backend)), None)


def by_age(backend: Backend) -> list[str]:
    """Folders whose manifest is whole, in the reverse order of their commits."""
    found = {str(name): manifest_if_whole(backend, str(name)) for name in committed(backend)}
    whole = [(known.sequence, layout.parse(folder), folder) for folder, known in found.items() if known]
    return [folder for _, _, folder in sorted(whole, reverse=True)]


def clear_leftovers(backend: Backend) -> list[str]:
    """Remove what writers that have certainly ended did not finish; the names."""
    writers = [(name, layout.writer(name)) for name in backend.folders() if layout.parse(name) is None]
    gone = [name for name, writer in writers if writer is not None and writer.is_gone()]
    for name in gone:
        backend.remove(name)
    return gone
