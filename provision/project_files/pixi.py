"""pixi.toml, and `[tool.pixi]` in a pyproject.toml: conda and pypi dependencies, features,
channels, platforms and system requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.project_files.statements import Statement
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    check_shape,
    parse_toml,
    table_requirement,
)

_CONDA_TABLES = ("dependencies", "host-dependencies", "run-dependencies")
# The names of targets that a Linux machine with x86 belongs to.
_LINUX_TARGETS = ("unix", "linux", "linux-64")


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a pixi.toml states. Raises InvalidSpec if it is malformed."""
    document = parse_toml(file, text)
    check_shape(file, document, "pixi")
    toml = TomlFile(file=file, text=text, document=document)
    return list(table_statements(toml, (), selection or Selection()))


def table_statements(toml: TomlFile, root: Keys, selection: Selection) -> Iterator[Statement]:
    """The same of the tables below root, such as `tool.pixi`."""
    workspace = next(
        ((*root, key) for key in ("workspace", "project") if toml.table(*root, key)), root
    )
    if toml.value(*workspace, "name"):
        yield toml.state("name", (*workspace, "name"), toml.value(*workspace, "name"))
    for channel in toml.value(*workspace, "channels") or ():
        yield _channel(toml, (*workspace, "channels"), channel)
    for platform in toml.value(*workspace, "platforms") or ():
        name = platform if isinstance(platform, str) else str(platform.get("platform"))
        yield toml.state("platform", (*workspace, "platforms"), item=name)
    yield from _tables(toml, root)
    taken = _taken_features(toml, root, selection)
    for name, feature in toml.table(*root, "feature").items():
        keys = (*root, "feature", name)
        if name in taken or selection.takes("group", name):
            for channel in feature.get("channels") or ():
                yield _channel(toml, (*keys, "channels"), channel)
            yield from _tables(toml, keys)
        else:
            members = [
                package
                for table in (*_CONDA_TABLES, "pypi-dependencies")
                for package in feature.get(table) or ()
            ]
            yield selection.offer(toml.state("ignored", keys), "group", name, members)


def _taken_features(toml: TomlFile, root: Keys, selection: Selection) -> set[str]:
    """The features of pixi's environment `default`, and of the environments that were chosen."""
    taken: set[str] = set()
    for name, environment in toml.table(*root, "environments").items():
        is_taken = selection.takes("group", name)
        if name == "default" or is_taken:
            features = environment
            if isinstance(environment, Mapping):
                features = environment.get("features") or ()
            taken.update(features)
    return taken


def _tables(toml: TomlFile, keys: Keys) -> Iterator[Statement]:
    """The tables of the file itself, of a feature or of a target."""
    for table in _CONDA_TABLES:
        for name, value in toml.table(*keys, table).items():
            yield _conda(toml, (*keys, table, name), name, value)
    for name, value in toml.table(*keys, "pypi-dependencies").items():
        yield from _pypi(toml, (*keys, "pypi-dependencies", name), name, value)
    for name in toml.table(*keys, "build-dependencies"):
        reason = "it builds the project itself, apart from the environment"
        yield toml.state("ignored", (*keys, "build-dependencies", name), reason=reason)
    cuda = toml.value(*keys, "system-requirements", "cuda")
    if cuda is not None:
        yield _system_cuda(toml, (*keys, "system-requirements", "cuda"), cuda)
    options = (*keys, "pypi-options")
    if toml.value(*options, "index-url"):
        yield toml.state("index", (*options, "index-url"), item=toml.value(*options, "index-url"))
    for address in toml.value(*options, "extra-index-urls") or ():
        yield toml.state("index", (*options, "extra-index-urls"), item=address)
    for links in toml.value(*options, "find-links") or ():
        address = str(links.get("url") or links.get("path"))
        yield toml.state("find-links", (*options, "find-links"), item=address)
    if toml.value(*options, "no-build-isolation") is not None:
        reason = "packages that need torch are built against the locked torch"
        yield toml.state("ignored", (*options, "no-build-isolation"), reason=reason)
    for name in toml.table(*keys, "target"):
        target = (*keys, "target", name)
        if name in _LINUX_TARGETS:
            yield from _tables(toml, target)
        else:
            yield toml.state("ignored", target, reason=f"it is for {name} alone")


def _channel(toml: TomlFile, keys: Keys, channel: str | Mapping[str, Any]) -> Statement:
    name = channel if isinstance(channel, str) else str(channel.get("channel"))
    return toml.state("channel", keys, item=name)


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
    version = str(options.get("version", "*")).strip()
    build = options.get("build", "")
    if version in ("", "*") and not build:
        version = ""
    channel = f"{options['channel']}::" if options.get("channel") else ""
    return toml.state("conda", keys, f"{channel}{name} {version} {build}".strip())


def _pypi(
    toml: TomlFile, keys: Keys, name: str, value: str | Mapping[str, Any]
) -> Iterator[Statement]:
    options = {"version": value} if isinstance(value, str) else value
    yield toml.state("pip", keys, table_requirement(name, options))
    if options.get("index"):
        yield toml.state("index", keys, options["index"], packages=(name,))


def _system_cuda(toml: TomlFile, keys: Keys, value: Any) -> Statement:
    """The newest CUDA that the machines' driver runs."""
    version = str(value.get("version") if isinstance(value, Mapping) else value)
    major, _, minor = version.partition(".")
    if not minor or minor == "0":
        return toml.state("cuda", keys, major)
    reason = f"the machines' driver runs CUDA {version}"
    return toml.state("cuda", keys, f">={major},<={version}", reason=reason)
