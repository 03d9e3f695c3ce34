"""What a shell completes: environments, GPUs, versions, ids of findings.

Each answer reads a few names from files and imports nothing else: a shell waits for it at every press
of Tab. The text of the data files is searched, not parsed, which takes a hundredth of the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from provision.core.paths import Folders

DATA = Path(__file__).parent.parent / "catalog" / "data"
RELEASE = re.compile(r'^"(\d+\.\d+\.\d+)":', re.MULTILINE)
PYTHONS = re.compile(r"^ +versions: \[(.*)\]", re.MULTILINE)
TOOLKIT = re.compile(r"\bcu(\d\d)(\d)\b")
PRODUCT = re.compile(r"^  - ([A-Z][\w ]*)$|products: \[([^\]]+)\]", re.MULTILINE)
LOCKED = re.compile(r"^- name: (\S+)$", re.MULTILINE)
REQUESTED = re.compile(r"^ *- +['\"]?([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE)

Names = Callable[[click.Context], Iterable[str]]


class CompletedText(click.types.StringParamType):
    """A text of which a shell completes some values; others are as valid."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        prefix = incomplete.lower()
        return [
            CompletionItem(name)
            for name in dict.fromkeys(self._names(ctx))
            if name.lower().startswith(prefix)
        ]


def _folders(ctx: click.Context) -> Folders:
    from provision.core.paths import default_folders

    return default_folders(ctx.meta.get("provision.envs"))


def environment_names(ctx: click.Context) -> list[str]:
    """The environments of the envs folder, and those that are installed."""
    from provision.core import prefix_registry
    from provision.core.paths import LOCK, SPEC

    folders = _folders(ctx)
    names = set(prefix_registry.list_prefixes(folders))
    for file in (SPEC, LOCK):
        names.update(path.parent.name for path in folders.envs.glob(f"*/{file}"))
    return sorted(names)


def package_names(ctx: click.Context) -> list[str]:
    """The locked packages of the environment that the command line names."""
    from provision.core.paths import LOCK

    path = _folders(ctx).envs / str(ctx.params.get("name")) / LOCK
    if not path.is_file():
        return []
    return sorted(set(LOCKED.findall(path.read_text(encoding="utf-8", errors="replace"))))


def changed_names(ctx: click.Context) -> list[str]:
    """What `update` and `remove` take: locked packages, those that spec.yml requests."""
    from provision.core.paths import SPEC

    if ctx.info_name != "remove":
        return package_names(ctx)
    path = _folders(ctx).envs / str(ctx.params.get("name")) / SPEC
    if not path.is_file():
        return []
    return sorted(set(REQUESTED.findall(path.read_text(encoding="utf-8", errors="replace"))))


def torch_releases(ctx: click.Context) -> list[str]:
    """Minor releases first, newest first; then every release."""
    releases = sorted(RELEASE.findall(_data("releases.yml")), key=_numbers, reverse=True)
    minors = [release.rpartition(".")[0] for release in releases]
    return [*dict.fromkeys(minors), *releases]


def cuda_versions(ctx: click.Context) -> list[str]:
    """The CUDA versions that releases were built for, newest first."""
    builds = set(TOOLKIT.findall(_data("releases.yml")))
    return sorted((f"{major}.{minor}" for major, minor in builds), key=_numbers, reverse=True)


def python_versions(ctx: click.Context) -> list[str]:
    """The Python versions that releases were built for, newest first."""
    versions: set[str] = set()
    for listed in PYTHONS.findall(_data("releases.yml")):
        versions.update(re.findall(r"\d+\.\d+", listed))
    return sorted(versions, key=_numbers, reverse=True)


def gpu_names(ctx: click.Context) -> list[str]:
    """The GPUs that the catalog knows, newest first."""
    names = []
    for product, inline in PRODUCT.findall(_data("gpus.yml")):
        names += [product] if product else [name.strip() for name in inline.split(",")]
    return names


def finding_names(ctx: click.Context) -> list[str]:
    from provision_runtime.report.findings import CATALOG

    return sorted(CATALOG)


# What is completed, by the name of the parameter.
BY_PARAMETER: dict[str, Names] = {
    "name": environment_names,
    "torch": torch_releases,
    "cuda": cuda_versions,
    "python": python_versions,
    "gpu": gpu_names,
    "package": package_names,
    "packages": changed_names,
    "explain": finding_names,
    # Environments, where a file or another thing can be named too.
    "subject": environment_names,
    "target": environment_names,
    "targets": environment_names,
    "before": environment_names,
    "after": environment_names,
}


def add_completion(parameter: click.Parameter) -> None:
    """Let shells complete the values of a parameter, if they are plain texts that we know."""
    names = BY_PARAMETER.get(parameter.name or "")
    if names is not None and type(parameter.type) is click.types.StringParamType:
        parameter.type = CompletedText(names)


def _data(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def _numbers(version: str) -> tuple[Any, ...]:
    return tuple(int(number) for number in version.split("."))
