"""The settings that NCCL, and torch for NCCL, will read: variables and nccl.conf files, each with
its effect.

nccl_settings.json says which settings cost speed or hide failures, nccl_variables.json which
release reads which variable; both name their sources.
"""

from __future__ import annotations

import difflib
import functools
import json
import mmap
import os
import pkgutil
import pwd
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..fs.files import read_text
from .model import NcclSetting

PREFIXES = ("NCCL_", "TORCH_NCCL_")
SYSTEM_FILE = Path("/etc/nccl.conf")
# The variable that names a file instead of the one in the home; older releases ignore it.
FILE_VARIABLE = "NCCL_CONF_FILE"
FILE_VARIABLE_SINCE = (2, 23)
ENVIRONMENT = "environment"
NAME_IN_LIBRARY = re.compile(rb"NCCL_[A-Z0-9_]+(?=\0)")
# The least likeness of a mistyped name and the right one: one or two letters of fifteen.
NEARLY = 0.88
UNKNOWN = "unknown to this test"
NO_SETTING = "is not a setting of NCCL, nor of a plug-in that provision knows"
NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")


def _is_on(value: str, reads_words: bool) -> bool:
    """NCCL reads its switches by strtoll: `1x` is 1, and a word is 0 (ncclLoadParam, param.cc).
    torch's switches are words or numbers."""
    number = NUMBER.match(value)
    if number is not None:
        return number[1].strip("0xX") != ""
    return reads_words and value.strip().lower() in ("true", "t", "yes", "y", "on")


@functools.lru_cache(maxsize=None)
def reference() -> Any:
    """NCCL's variables: `settings` with their effects, `plugins` by their prefixes, `of_builds`, and
    for all that NCCL itself reads `variables`, the first release and the last."""
    documents = {}
    for name in ("nccl_settings.json", "nccl_variables.json"):
        # The program that a node runs from its standard input has no files.
        documents.update(json.loads(pkgutil.get_data(__package__, name) or "{}"))
    return documents


def setting_effect(name: str, value: str) -> tuple[str, bool]:
    """The effect of this value, and whether it costs speed or hides failures, or is not what its
    author meant."""
    setting = reference()["settings"].get(name, {})
    effect, costly = setting.get("effect", UNKNOWN), setting.get("costly", "never")
    is_set = value.strip() != ""
    if costly in ("on", "off") and is_set and NUMBER.match(value) is None:
        return f"NCCL reads numbers only: this means 0, not 1. Its meaning: {effect}", True
    tokens = [token for token in re.split(r"[\s,;:^]+", value) if token and not token.isdigit()]
    values = setting.get("values", tokens)
    wrong = [token for token in tokens if token.upper() not in map(str.upper, values)]
    if wrong:
        return f"NCCL does not know {wrong[0]!r}, only {', '.join(values)}", True
    if isinstance(costly, list):
        return effect, value.strip().upper() in costly
    verdicts = {"never": False, "set": True}
    is_on = _is_on(value, reads_words=costly.startswith("torch"))
    return effect, is_set and verdicts.get(costly, is_on == costly.endswith("on"))


def settings(version: str | None = None) -> list[NcclSetting]:
    """The settings that this version of NCCL (by default the newest) will read in this process."""
    texts = [(str(path), read_text(path)) for path in files(os.environ, home(), version)]
    return effective(os.environ, texts)


def home() -> Path | None:
    """From the user database, as NCCL does, not $HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def files(
    environment: Mapping[str, str], home: Path | None, version: str | None = None
) -> list[Path]:
    """In the order in which NCCL reads them; the first value of a setting wins."""
    configured = environment.get(FILE_VARIABLE, "")
    if version is not None and tuple(map(int, version.split(".")[:2])) < FILE_VARIABLE_SINCE:
        configured = ""
    if configured:
        return [Path(configured), SYSTEM_FILE]
    return [home / ".nccl.conf", SYSTEM_FILE] if home else [SYSTEM_FILE]


def effective(environment: Mapping[str, str], texts: list[tuple[str, str]]) -> list[NcclSetting]:
    """Each setting once, from the source that wins: the environment, then the files in order."""
    sources = [(ENVIRONMENT, dict(environment))]
    sources += [(name, parse(text)) for name, text in texts]
    result: dict[str, NcclSetting] = {}
    for source, values in sources:
        for name, value in values.items():
            is_ours = name in reference()["settings"] or name.startswith(PREFIXES)
            if is_ours and name not in result:
                effect, is_costly = setting_effect(name, value)
                result[name] = {
                    "name": name,
                    "value": value,
                    "source": source,
                    "effect": effect,
                    "is_costly": is_costly,
                }
    return [result[name] for name in sorted(result)]


def names_in(library: str) -> frozenset[str]:
    """The variables that a build of NCCL knows: their names are in its library. Empty if it cannot
    be read."""
    try:
        with open(library, "rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ
        ) as content:
            return frozenset(name.decode() for name in NAME_IN_LIBRARY.findall(content))
    except (OSError, ValueError):
        return frozenset()


def mistyped(names: Iterable[str], library: str = "") -> dict[str, str]:
    """The variables that NCCL does not read, each with what is right instead. Those of plug-ins and
    builds are left alone. library: the file of the NCCL in use, which may know more names."""
    facts = reference()
    documented = {*facts["settings"], *facts["of_builds"], *facts["variables"], *names_in(library)}
    result = {}
    for name in names:
        is_foreign = name.startswith(tuple(facts["plugins"])) or not name.startswith("NCCL_")
        if name not in documented and not is_foreign:
            nearest = difflib.get_close_matches(name, documented, 1, NEARLY)
            result[name] = f"is not a setting of NCCL; {nearest[0]} is" if nearest else NO_SETTING
    return result


def parse(text: str) -> dict[str, str]:
    """NAME=VALUE lines, as NCCL reads them: `#` only at the beginning of a line, blanks belong to
    name and value, the first value wins."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name, value)
    return values
