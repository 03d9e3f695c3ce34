"""uv.lock: the packages that the project needs on Linux, with their locked versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.statements import Statement
from provision.project_files.toml_file import (
    PYTHONS,
    Selection,
    TomlFile,
    pythons_of,
    read_toml,
)

Package = Mapping[str, Any]
# What uv writes where extras or groups exclude each other: extra-4-demo-cu121.
_CONFLICT = re.compile(r"extra (==|!=) '(extra|group)-(\d+)-([^']+)'")


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a uv.lock states. Raises InvalidSpec if it is malformed."""
    return list(_UvLock(read_toml(file, text, "uv-lock"), selection).statements())


class _UvLock:
    """One uv.lock. needed: by the index of a package, the markers under which it is needed."""

    def __init__(self, toml: TomlFile, selection: Selection) -> None:
        self.toml = toml
        self.selection = selection
        self.packages: Sequence[Package] = toml.value("package")
        self.needed: dict[int, set[str]] = {}
        self.followed: set[tuple[int, str]] = set()

    def statements(self) -> Iterator[Statement]:
        toml = self.toml
        yield from toml.stated({"requires-python": ("python", "")})
        members = [package for package in self.packages if _member_folder(package)]
        roots = [package for package in members if _member_folder(package) == "."] or members
        if not roots:
            raise InvalidSpec(
                f"{toml.file} does not contain this project.",
                advice="`uv export --output-file requirements.txt` writes its packages.",
            )
        for root in roots:
            yield toml.state("name", ("package",), root["name"], index=self.packages.index(root))
            self._follow(root.get("dependencies") or ())
            for option, key in (("extra", "optional-dependencies"), ("group", "dev-dependencies")):
                for name, dependencies in (root.get(key) or {}).items():
                    if self.selection.takes(option, name):
                        self._follow(dependencies)
                    else:
                        names = [dependency["name"] for dependency in dependencies]
                        keys = ("package", key, name)
                        yield self.selection.offer(toml.state("ignored", keys), option, name, names)
        for index, package in enumerate(self.packages):
            if index in self.needed and package not in roots:
                yield from self._package(index)
            elif package not in roots:
                text = f"{package['name']} {package.get('version', '')}".strip()
                reason = "nothing that is taken needs it on Linux"
                yield toml.state("ignored", ("package",), text=text, index=index, reason=reason)

    def _follow(self, dependencies: Sequence[Mapping[str, Any]]) -> None:
        """Note the packages of some dependencies, and of theirs."""
        pending = list(dependencies)
        while pending:
            dependency = pending.pop()
            marker = _CONFLICT.sub(self._conflict_marker, dependency.get("marker", ""))
            pythons = pythons_of(marker)
            if not pythons:
                continue
            for index, package in enumerate(self.packages):
                if any(
                    package.get(key) != dependency[key]
                    for key in ("name", "version", "source")
                    if key in dependency
                ):
                    continue
                self.needed.setdefault(index, set()).add("" if pythons == PYTHONS else marker)
                lists = {"": package.get("dependencies") or ()}
                optional = package.get("optional-dependencies") or {}
                lists |= {extra: optional.get(extra, ()) for extra in dependency.get("extra") or ()}
                for extra, further in lists.items():
                    if (index, extra) not in self.followed:
                        self.followed.add((index, extra))
                        pending += further

    def _conflict_marker(self, match: re.Match[str]) -> str:
        """A condition on a chosen extra or group, as one that holds always or never."""
        name = match[4][int(match[3]) + 1 :]
        holds = self.selection.takes(match[2], name) == (match[1] == "==")
        return f"os_name {'==' if holds else '!='} 'posix'"

    def _package(self, index: int) -> Iterator[Statement]:
        package = self.packages[index]
        source, markers = package.get("source") or {}, self.needed[index]
        folder = _member_folder(package)
        options: dict[str, Any] = {
            "url": source.get("url"),
            "path": folder or source.get("path") or source.get("directory"),
            "editable": bool(folder),
        }
        if "" not in markers:
            options["marker"] = " or ".join(f"({marker})" for marker in sorted(markers))
        if source.get("git"):
            git = re.fullmatch(r"([^?#]*)(?:\?([^#]*))?#?(.*)", source["git"])
            assert git is not None
            subdirectory = re.search(r"subdirectory=([^&]+)", git[2] or "")
            options |= {"git": git[1], "rev": git[3]}
            options["subdirectory"] = subdirectory and subdirectory[1]
        version, registry = package.get("version", ""), str(source.get("registry", ""))
        yield from self.toml.locked(
            ("package",), index, package["name"], version, options, registry
        )


def _member_folder(package: Package) -> str:
    """The folder of a package of the project itself; empty for any other package."""
    source = package.get("source") or {}
    return str(source.get("editable") or source.get("virtual") or "")
