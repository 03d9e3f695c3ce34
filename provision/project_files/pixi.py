"""pixi.toml, and `[tool.pixi]` in a pyproject.toml: conda and pypi dependencies, features,
channels, platforms and system requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.core.statements import Statement
from provision.project_files.rules import table
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    read_toml,
)

_CONDA_TABLES = ("dependencies", "host-dependencies", "run-dependencies")
# The names of targets that a Linux machine with x86 belongs to.
_LINUX_TARGETS = ("unix", "linux", "linux-64")


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a pixi.toml states. Raises InvalidSpec if it is malformed."""
    return list(table_statements(read_toml(file, text, "pixi"), (), selection))


def table_statements(toml: TomlFile, root: Keys, selection: Selection) -> Iterator[Statement]:
    """The same of the tables below root, such as `tool.pixi`."""
    yield from toml.stated(table("pixi_workspace"), root)
    yield from _tables(toml, root)
    # The features of pixi's environment `default`, and of the environments that were chosen.
    features: set[str] = set()
    for name, environment in toml.table(*root, "environments").items():
        if selection.takes("group", name) or name == "default":
            is_table = isinstance(environment, Mapping)
            features.update(environment.get("features") or () if is_table else environment)
    for name, feature in toml.table(*root, "feature").items():
        keys = (*root, "feature", name)
        if selection.takes("group", name) or name in features:
            yield from _tables(toml, keys)
        else:
            sections = (*_CONDA_TABLES, "pypi-dependencies")
            parts = [feature, *(feature.get("target") or {}).values()]
            members = [name for part in parts for key in sections for name in part.get(key) or ()]
            yield selection.offer(toml.state("ignored", keys), "group", name, members)


def _tables(toml: TomlFile, keys: Keys) -> Iterator[Statement]:
    """The tables of the file itself, of a feature or of a target."""
    for section in _CONDA_TABLES:
        for name, value in toml.table(*keys, section).items():
            yield _conda(toml, (*keys, section, name), name, value)
    yield from toml.requirements((*keys, "pypi-dependencies"))
    cuda = toml.value(*keys, "system-requirements", "cuda")
    if cuda is not None:
        yield _system_cuda(toml, (*keys, "system-requirements", "cuda"), cuda)
    yield from toml.stated(table("pixi"), keys)
    for name in toml.table(*keys, "target"):
        target = (*keys, "target", name)
        if name in _LINUX_TARGETS:
            yield from _tables(toml, target)
        else:
            yield toml.state("ignored", target, reason=f"it is for {name} alone")


def _conda(toml: TomlFile, keys: Keys, name: str, value: str | Mapping[str, Any]) -> Statement:
    options = {"version": value} if isinstance(value, str) else value
    for key in ("git", "path", "url"):
        if options.get(key):
            return toml.state(
                "unknown",
                keys,
                reason=f"pixi builds a conda package of this {key}; provision takes wheels of it",
                next_step=f"provision add NAME ./{options[key]}" if key == "path" else "",
            )
    channel = f"{options['channel']}::" if options.get("channel") else ""
    version, build = options.get("version") or "*", options.get("build", "")
    return toml.state("conda", keys, f"{channel}{name} {version} {build}".strip())


def _system_cuda(toml: TomlFile, keys: Keys, value: Any) -> Statement:
    """The newest CUDA that the machines' driver runs."""
    version = str(value.get("version") if isinstance(value, Mapping) else value)
    major, _, minor = version.partition(".")
    if minor in ("", "0"):
        return toml.state("cuda", keys, major)
    reason = f"the machines' driver runs CUDA {version}"
    return toml.state("cuda", keys, f">={major},<={version}", reason=reason)
