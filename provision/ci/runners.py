"""runners.yml -> Runners. Owns what a runner may be said to be and in which words; docs/ci.md describes the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import catalog
from provision.catalog import Gpu
from provision.core.errors import NOT_YAML, InvalidSpec
from provision.core.types import PLATFORM, PLATFORMS, Platform

TIMEOUT_MIN = 120  # minutes; a build from an empty cache downloads several GB
TIMEOUT_MAX = 7200  # GitHub ends a job on a lab's own machine after five days
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}"
# What a label or an address can hold; what must never reach a workflow is an expression (${{ }}), a quote or a line's end.
LABEL = r"[A-Za-z0-9][A-Za-z0-9 ._:/@+=-]{0,127}"


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A machine that takes CI jobs, or several of a kind under the same labels."""

    name: str
    labels: tuple[
        str, ...
    ]  # GitHub's labels, GitLab's tags: a job goes to a runner that has all of them
    gpu: Gpu | None = None  # None: a CPU runner
    gpus: int = 0
    driver: str | None = None
    platform: Platform = PLATFORM
    glibc: str | None = None  # None: not said, so not compared
    cpus: int | None = None
    timeout_min: int = TIMEOUT_MIN
    cache: str | None = None  # a folder of the machine that outlives jobs
    image: str | None = None  # GitLab's docker executor runs jobs in it


@dataclass(frozen=True, kw_only=True)
class _Key:
    """A key of a runner: whether a value is one, and in words."""

    fits: Callable[[Any], bool]
    what: str


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _number(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    )


def _labels(value: Any) -> bool:
    items = [value] if isinstance(value, str) else value
    return isinstance(items, list) and bool(items) and all(_text(LABEL)(item) for item in items)


KEYS: Mapping[str, _Key] = {
    "name": _Key(
        fits=_text(NAME), what="a text of at most 50 letters, digits and `.`, `_`, `-`, like a100-1"
    ),
    "labels": _Key(
        fits=_labels,
        what="a text or a list of texts without `$`, quotes and braces, like [self-hosted, linux, a100]",
    ),
    "gpu": _Key(
        fits=_text(r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]*"),
        what="a GPU's name or architecture, like A100 or sm_80",
    ),
    "gpus": _Key(fits=_number(1, 1024), what="a whole number of at least 1"),
    "driver": _Key(fits=_text(r"\d+(\.\d+){0,2}"), what='a version in quotes, like "550.54.14"'),
    "platform": _Key(fits=lambda value: value in PLATFORMS, what=" or ".join(PLATFORMS)),
    "glibc": _Key(fits=_text(r"\d+\.\d+"), what='a version in quotes, like "2.35"'),
    "cpus": _Key(fits=_number(1, 65536), what="a whole number of at least 1"),
    "timeout": _Key(
        fits=_number(1, TIMEOUT_MAX), what=f"a number of minutes, {TIMEOUT_MAX} at most"
    ),
    "cache": _Key(
        fits=_text(r"/[A-Za-z0-9._/-]+"),
        what="a folder of that machine from its root on, like /var/cache/provision",
    ),
    "image": _Key(
        fits=_text(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"),
        what="an image's reference, like registry/name:tag@sha256:...",
    ),
}
REQUIRED = ("name", "labels")
GPU_ONLY = ("gpus", "driver")


def read_runners(path: Path) -> tuple[Runner, ...]:
    """The runners of a file, in its order. All its mistakes are reported at once, each with its line."""
    content, lines = _parse(path)
    mistakes = list(_mistakes(content, lines))
    if mistakes:
        raise InvalidSpec(
            " ".join(f"{path}:{line}: {text}" for line, text in sorted(mistakes)),
            advice="docs/ci.md describes the file, with an example.",
        )
    return tuple(_runner(entry) for entry in content["runners"])


def _parse(path: Path) -> tuple[Any, _Lines]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text), _Lines(yaml.compose(text, Loader=yaml.SafeLoader))
    except FileNotFoundError as error:
        raise InvalidSpec(
            f"There is no {path}.", advice="docs/ci.md describes the file, with an example."
        ) from error
    except (yaml.YAMLError, *NOT_YAML) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InvalidSpec(
            f"{where}: this is not YAML: {getattr(error, 'problem', None) or error}."
        ) from error


class _Lines:
    """Where things stand in the file."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def top(self) -> list[tuple[str, int]]:
        return _keys(self._root)

    def entry(self, index: int) -> list[tuple[str, int]]:
        """The keys of a runner, with their lines; repeated ones too."""
        return _keys(self._entries()[index])

    def start(self, index: int) -> int:
        return int(self._entries()[index].start_mark.line) + 1

    def _entries(self) -> list[Any]:
        return list(next(value.value for key, value in self._root.value if key.value == "runners"))


def _keys(node: Any) -> list[tuple[str, int]]:
    return [(str(key.value), key.start_mark.line + 1) for key, _ in node.value]


def _mistakes(content: Any, lines: _Lines) -> Iterable[tuple[int, str]]:
    if not isinstance(content, dict):
        yield 1, "runners.yml is a mapping with the key `runners`, a list."
        return
    for key, line in lines.top():
        if key != "runners":
            yield line, f"`{key}` is not a key here; the only one is `runners`."
    yield from _repeated(lines.top())
    entries = content.get("runners")
    if not isinstance(entries, list) or not entries:
        yield dict(lines.top()).get("runners", 1), "`runners` is a list of at least one runner."
        return
    names: dict[Any, int] = {}
    for index, entry in enumerate(entries):
        line = lines.start(index)
        if not isinstance(entry, dict):
            yield line, f"a runner is a mapping with keys among {', '.join(KEYS)}."
            continue
        yield from _entry_mistakes(entry, dict(lines.entry(index)), line)
        yield from _repeated(lines.entry(index))
        name = entry.get("name")
        if isinstance(name, str) and name in names:
            yield (
                dict(lines.entry(index))["name"],
                f"`{name}` is the name of the runner in line {names[name]}, too.",
            )
        elif isinstance(name, str):
            names[name] = line


def _repeated(keys: list[tuple[str, int]]) -> Iterable[tuple[int, str]]:
    seen: set[str] = set()
    for key, line in keys:
        if key in seen:
            yield line, f"`{key}` stands here again."
        seen.add(key)


def _entry_mistakes(
    entry: Mapping[Any, Any], lines: Mapping[str, int], start: int
) -> Iterable[tuple[int, str]]:
    for key, value in entry.items():
        line = lines.get(str(key), start)
        if key not in KEYS:
            yield line, f"`{key}` is not a key of a runner; the keys are {', '.join(KEYS)}."
        elif not KEYS[key].fits(value):
            yield line, f"`{key}` is {KEYS[key].what}; not {_shown(value)}."
        elif key == "gpu" and (problem := _gpu_problem(value)):
            yield line, problem
    for key in REQUIRED:
        if key not in entry:
            yield start, f"this runner has no `{key}`: {KEYS[key].what}."
    if "gpu" in entry and "driver" not in entry:
        yield (
            start,
            f"this runner has a GPU and no `driver`: {KEYS['driver'].what} (nvidia-smi says which).",
        )
    for key in GPU_ONLY:
        if key in entry and "gpu" not in entry:
            yield lines[key], f"`{key}` says something of GPUs, and this runner has no `gpu`."


def _shown(value: Any) -> str:
    text = f"`{value}`" if isinstance(value, str) else f"{value!r}"
    return text if len(text) <= 60 else f"{text[:56]}..."


def _gpu_problem(asked: str) -> str | None:
    try:
        catalog.find_gpu(asked)
    except InvalidSpec as error:
        return str(error)
    return None


def _runner(entry: Mapping[str, Any]) -> Runner:
    labels, gpu = entry["labels"], entry.get("gpu")
    return Runner(
        name=entry["name"],
        labels=(labels,) if isinstance(labels, str) else tuple(labels),
        gpu=catalog.find_gpu(gpu) if gpu else None,
        gpus=entry.get("gpus", 1) if gpu else 0,
        driver=entry.get("driver"),
        platform=entry.get("platform", PLATFORM),
        glibc=entry.get("glibc"),
        cpus=entry.get("cpus"),
        timeout_min=entry.get("timeout", TIMEOUT_MIN),
        cache=entry.get("cache"),
        image=entry.get("image"),
    )
