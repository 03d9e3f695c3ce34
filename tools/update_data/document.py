"""A data file as text that is changed in place: comments, order, quotes and everything not changed
stay byte for byte."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from provision.catalog.facts import blank
from provision.core.errors import InvalidSpec
from update_data.compare import Row

ADVICE = "--data names a folder with releases.yml; without it, provision/catalog/data is taken."


class Document:
    """A YAML file that is read, changed and written without disturbing what is not changed."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidSpec for a file that cannot be read."""
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
            self.content: CommentedMap = _yaml().load(self.text)
        except FileNotFoundError as error:
            raise InvalidSpec(f"There is no {path}.", advice=ADVICE) from error
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSpec(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}.",
                advice=ADVICE,
            ) from error
        except YAMLError as error:
            raise InvalidSpec(
                f"{path} is not YAML: {' '.join(str(error).split())}.", advice=ADVICE
            ) from error

    def require_mapping(self) -> None:
        """Raise InvalidSpec for another kind of file."""
        if not isinstance(self.content, CommentedMap):
            raise InvalidSpec(f"{self.path} is not a mapping.", advice=ADVICE)

    def require_releases(self) -> None:
        """Raise InvalidSpec unless every key is a release, with a mapping under it, and there is
        one."""
        self.require_mapping()
        if not self.content:
            raise InvalidSpec(f"{self.path} holds no release.", advice=ADVICE)
        for key, value in self.content.items():
            try:
                Version(key)
            except (InvalidVersion, TypeError) as error:
                raise InvalidSpec(
                    f"{self.path} has the key {key!r}, which is not a release (a version in quotes).",
                    advice=ADVICE,
                ) from error
            if not isinstance(value, CommentedMap):
                raise InvalidSpec(f"{self.path} has no mapping under {key}.", advice=ADVICE)

    def set(self, row: Row) -> None:
        """Write a row's values, and its source. Adds a release or a build that the table does not
        have, the rest of it unknown."""
        if row.path[0] not in self.content:
            self._insert(row.path[0])
        entry = self.content
        for depth, key in enumerate(row.path):
            if key not in entry:
                is_build = depth == 2 and row.path[1] == "wheels"
                entry[key] = _styled(blank("wheel") if is_build else {})
            entry = entry[key]
        for key, value in row.values.items():
            if key not in entry:
                index = list(entry).index("source") if "source" in entry else len(entry)
                entry.insert(index, key, _styled(value))
            elif value is not None:
                entry[key] = _styled(value)
        if entry.get("source") != row.source:
            entry["source"] = row.source

    def changed(self) -> str:
        """The text as it is now."""
        out = io.StringIO()
        _yaml().dump(self.content, out)
        return out.getvalue()

    def diff(self, after: str) -> str:
        name = f"provision/catalog/data/{self.path.name}"
        old_lines, new_lines = self.text.splitlines(keepends=True), after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old_lines, new_lines, f"a/{name}", f"b/{name}"))

    def _insert(self, release: str) -> None:
        index = 0
        for other in self.content:
            if Version(other) > Version(release):
                break
            index += 1
        self.content.insert(index, DoubleQuotedScalarString(release), _styled(blank("release")))


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 100_000  # sources are not folded
    yaml.indent(mapping=2, sequence=2, offset=0)
    yaml.Representer = _Representer
    return yaml


class _Representer(RoundTripRepresenter):
    """Writes null where ruamel writes nothing."""

    def null(self, data: None) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(type(None), _Representer.null)


def _styled(value: Any) -> Any:
    """As the file is written: versions in double quotes, lists of them in one line."""
    if isinstance(value, dict):
        return CommentedMap({key: _styled(item) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, str):
        sequence = CommentedSeq(_styled(item) for item in value)
        sequence.fa.set_flow_style()
        return sequence
    if isinstance(value, str) and re.fullmatch(r"[\d.]+", value):
        return DoubleQuotedScalarString(value)
    return value
