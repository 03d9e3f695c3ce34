"""uv.lock: the packages that the project needs on Linux, with their locked versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.errors import InvalidSpec
from provision.project_files.statements import Statement
from provision.project_files.toml_file import (
    PYTHONS,
    Selection,
    TomlFile,
    check_shape,
    parse_toml,
    pythons_of,
    table_requirement,
)

Package = Mapping[str, Any]
# What uv writes where extras or groups exclude each other: extra-4-demo-cu121.
_CONFLICT = re.compile(r"extra (==|!=) '(extra|group)-(\d+)-([^']+)'")
_ALWAYS, _NEVER = "os_name == 'posix'", "os_name == ''"
_TORCH_INDEX = re.compile(r"/whl/(cu\d+|cpu)/?$")


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a uv.lock states. Raises InvalidSpec if it is malformed."""
    document = parse_toml(file, text)
    check_shape(file, document, "uv-lock")
    toml = TomlFile(file=file, text=text, document=document)
    return list(_UvLock(toml, selection or Selection()).statements())


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
        if toml.value("requires-python"):
            yield toml.state("python", ("requires-python",), toml.value("requires-python"))
        members = [package for package in self.packages if _member_folder(package)]
        roots = [package for package in members if _member_folder(package) == "."] or members
        if not roots:
            raise InvalidSpec(
                f"{toml.file} has no package of this project.",
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
        return _ALWAYS if holds else _NEVER

    def _package(self, index: int) -> Iterator[Statement]:
        package, keys = self.packages[index], ("package",)
        name, source = package["name"], package.get("source") or {}
        markers = self.needed[index]
        options: dict[str, Any] = {
            "version": f"=={package['version']}" if "version" in package else "*"
        }
        if "" not in markers:
            options["marker"] = " or ".join(f"({marker})" for marker in sorted(markers))
        if source.get("git"):
            address, _, commit = source["git"].partition("#")
            address, _, query = address.partition("?")
            folder = re.search(r"subdirectory=([^&]+)", query)
            options |= {"git": address, "rev": commit, "subdirectory": folder and folder[1]}
        elif _member_folder(package):
            options |= {"path": _member_folder(package), "editable": True}
        else:
            options["url"] = source.get("url")
            options["path"] = source.get("path") or source.get("directory")
        text = f"{name} {package.get('version', '')}".strip()
        value = table_requirement(name, options)
        yield self.toml.state("pip", keys, value, text=text, index=index)
        registry = str(source.get("registry", ""))
        if _TORCH_INDEX.search(registry):
            yield self.toml.state(
                "index", keys, registry, text=registry, index=index, packages=(name,)
            )


def _member_folder(package: Package) -> str:
    """The folder of a package of the project itself; empty for any other package."""
    source = package.get("source") or {}
    return str(source.get("editable") or source.get("virtual") or "")
