"""requirements.txt -> the requirements in it.

pip's options in such a file say where packages come from, and nothing of what is requested; they
belong into the settings of pip or uv, so a file that has them is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from provision.core.errors import InvalidSpec

_COMMENT = re.compile(r"(^|\s)#.*$")
# Options of a single requirement: its hashes are checked against the lock's own instead.
_PER_REQUIREMENT = re.compile(r"\s+--(hash|config-settings?|global-option)[= ]\S+")
_INCLUDE = re.compile(r"(?:-r|--requirement)[= ]?\s*(\S+)")
_EDITABLE = re.compile(r"(?:-e|--editable)[= ]?\s*(\S+)")


# No list of packages is longer; a file that never ends (a device) is.
MAX_BYTES = 4 << 20


def read_requirements(path: Path, options: list[str] | None = None) -> list[str]:
    """The requirements of a file and of those that it includes with -r; `-e PATH` stays.

    Each file is read once, however many files include it. options: where pip's options go. Without
    it they raise InvalidSpec, as a missing file does.
    """
    return list(dict.fromkeys(_requirements(path.absolute(), (), set(), options)))


def _requirements(
    path: Path, including: tuple[Path, ...], complete: set[Path], options: list[str] | None
) -> Iterator[str]:
    """including: the files whose -r led here; complete: those that were read to their end. Both
    as resolved paths: `a/../b.txt` is `b.txt`."""
    resolved = path.resolve()
    if resolved in including:
        raise InvalidSpec(f"{resolved} includes itself.", advice="Remove one of the -r lines.")
    if resolved in complete:
        return
    try:
        text = _read(path, is_included=bool(including))
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"{path} cannot be read: {error}.", advice="Name a requirements.txt with -r."
        ) from error
    for line in text.replace("\\\n", " ").splitlines():
        line = _PER_REQUIREMENT.sub("", _COMMENT.sub("", line)).strip()
        include = _INCLUDE.fullmatch(line)
        editable = _EDITABLE.fullmatch(line)
        if include:
            included = path.parent / include[1]
            yield from _requirements(included, (*including, resolved), complete, options)
        elif editable:
            yield f"-e {_from_folder(editable[1], path.parent)}"
        elif line.startswith("-") and options is not None:
            options.append(line)
        elif line.startswith("-"):
            raise InvalidSpec(
                f"{path} has an option of pip: {line}",
                advice="Set indexes in pip's or uv's own settings (`pip config set`), and remove "
                "the line.",
            )
        elif line:
            yield _from_folder(line, path.parent)
    complete.add(resolved)


def _read(path: Path, *, is_included: bool) -> str:
    """The text of a file. Who names a pipe on the command line waits for it; a file that names one
    must not make others wait. Raises OSError and ValueError."""
    if is_included and path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    return content.decode("utf-8-sig")


def _from_folder(requirement: str, folder: Path) -> str:
    """A relative path means one below the file's folder."""
    return str(folder / requirement) if requirement.startswith(("./", "../")) else requirement
