"""A project's own files as the last layer of an image: those that git tracks, as they are in the
work tree."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from pathlib import Path

from provision.adapters import git
from provision.core.container import WORKSPACE
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.image import oci_layout
from provision.image.contents import read_files
from provision.image.layers import LayerEntry
from provision_runtime.report.text import format_bytes

# Its files are held in memory; what is larger is data, which belongs on a mount.
SIZE_LIMIT = 256 << 20
SHOWN_PATHS = 3
REVISION_LABEL = "org.opencontainers.image.revision"
CHANGED_LABEL = "org.provision.code.changed"  # how many files differ from that commit


@frozen
class Code:
    """A folder of a work tree, as an image has it below /workspace. entries: its tracked files and
    the folders above them, which any user may write to."""

    folder: Path
    tree: git.WorkTree
    entries: tuple[LayerEntry, ...]

    @property
    def labels(self) -> dict[str, str]:
        changed = {CHANGED_LABEL: str(len(self.tree.changed))} if self.tree.changed else {}
        return {REVISION_LABEL: self.tree.commit, **changed}

    @property
    def summary(self) -> str:
        """The commit, and what is not of it."""
        text = f"code of {self.folder}: commit {self.tree.commit[:12]}"
        if self.tree.changed:
            text += f", with changes that are not committed: {_listed(self.tree.changed)}"
        if self.tree.untracked:
            text += f"; without what git does not track: {_listed(self.tree.untracked)}"
        return text


def built_code(layout: Path) -> Collection[str] | None:
    """The paths of the code in the image of a layout, without a leading slash; None if it has no code.

    Raises IntegrityError if the layer cannot be read.
    """
    manifest = oci_layout.read(layout)
    if manifest is None or REVISION_LABEL not in manifest.annotations:
        return None
    layer = oci_layout.blob(layout, manifest.layers[-1].digest)
    return read_files([layer], re.compile("(?!)"), noticed=re.compile("(?s:.*)")).noticed


def read_code(folder: Path) -> Code:
    """The tracked files of a folder.

    Raises InvalidSpec if git knows no commit of it, if it has a submodule that is not checked out, no
    tracked file, or more than SIZE_LIMIT bytes.
    """
    tree = git.work_tree(folder)
    root = WORKSPACE.lstrip("/")
    entries = {}
    size = 0
    for name in tree.files:
        path, target = folder / name, f"{root}/{name}"
        size += path.lstat().st_size
        if size > SIZE_LIMIT:
            raise InvalidSpec(
                f"git tracks more than {format_bytes(SIZE_LIMIT)} in {folder}: that is data, which "
                "does not belong in a layer of code.",
                advice="Name a folder with the code alone, and mount the data.",
            )
        if path.is_symlink():
            link = str(path.readlink())
            entries[target] = LayerEntry(path=target, kind="link", mode=0o777, target=link)
        else:
            executable = bool(path.stat().st_mode & 0o100)
            entries[target] = LayerEntry.of(target, path.read_bytes(), executable=executable)
        while (target := posixpath.dirname(target)) and target not in entries:
            entries[target] = LayerEntry(path=target, kind="folder", mode=0o1777)
    if not tree.files:
        raise InvalidSpec(f"git tracks no file in {folder}.", advice="`git add` the code.")
    return Code(folder=folder, tree=tree, entries=tuple(entries[path] for path in sorted(entries)))


def _listed(paths: tuple[str, ...]) -> str:
    more = len(paths) - SHOWN_PATHS
    return ", ".join(paths[:SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")
