"""runners.yml -> Runners. provision/schemas/runners.schema.json defines its keys and values, and
docs/ci.md describes the file.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import catalog
from provision.catalog import Gpu
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform
from provision.core.schema import DocumentPath, SchemaViolation, schema_document, schema_violations
from provision.core.yaml_text import YamlError, YamlLines, compose_yaml, parse_yaml, read_source

TIMEOUT_MIN = 120  # minutes; a build from an empty cache downloads several GB
MAX_VALUE_SHOWN = 60  # characters
_ADVICE = "docs/ci.md describes the file, with an example."


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A machine that takes CI jobs, or several of a kind under the same labels."""

    name: str
    # GitHub's labels, GitLab's tags: a job goes to a runner that has all of them.
    labels: tuple[str, ...]
    gpu: Gpu | None = None  # None: a CPU runner
    gpus: int = 0
    driver: str | None = None
    platform: Platform = PLATFORM
    glibc: str | None = None  # None: unknown, so not compared
    cpus: int | None = None
    timeout_min: int = TIMEOUT_MIN
    cache: str | None = None  # a folder of the machine that outlives jobs
    image: str | None = None  # GitLab's docker executor runs jobs in it
    engine: bool = False  # whether jobs may use a Docker engine there


@dataclass(frozen=True, order=True)
class _Mistake:
    line: int
    text: str


def read_runners(path: Path) -> tuple[Runner, ...]:
    """The runners of a file, in its order.

    Raises InvalidSpec with all mistakes at once, each with its line.
    """
    try:
        text = read_source(path)
        document, root = parse_yaml(text), compose_yaml(text)
    except FileNotFoundError as error:
        raise InvalidSpec(f"There is no {path}.", advice=_ADVICE) from error
    except YamlError as error:
        raise InvalidSpec(error.in_file(path)) from error
    lines = YamlLines(root)
    violations = list(_violations(document))
    mistakes = {_schema_mistake(violation, document, lines) for violation in violations}
    mistakes.update(_repeated_keys(lines, ()))
    runners = document.get("runners") if isinstance(document, dict) else None
    if isinstance(runners, list):
        malformed = {violation.path for violation in violations}
        mistakes.update(_runner_mistakes(runners, lines, malformed))
    if mistakes:
        sentences = [f"{path}:{mistake.line}: {mistake.text}" for mistake in sorted(mistakes)]
        raise InvalidSpec("\n".join(sentences), advice=_ADVICE)
    return tuple(_runner(entry) for entry in document["runners"])


def _violations(document: Any) -> Iterator[SchemaViolation]:
    """The violations of the schema, with one violation for each unexpected or missing key."""
    for violation in schema_violations(document, "runners"):
        if not violation.names:
            yield violation
        for name in violation.names:
            yield SchemaViolation(
                path=violation.path,
                keyword=violation.keyword,
                names=(name,),
                message=violation.message,
            )


def _schema_mistake(violation: SchemaViolation, document: Any, lines: YamlLines) -> _Mistake:
    path = violation.path
    line = lines.line(path[:3])
    if len(path) >= 3:
        _, index, key = path[:3]
        value = document["runners"][index][key]
        value_text = f"`{value}`" if isinstance(value, str) else f"{value!r}"
        if len(value_text) > MAX_VALUE_SHOWN:
            value_text = f"{value_text[: MAX_VALUE_SHOWN - 4]}..."
        text = f"`{key}` must be {_description(str(key))}, not {value_text}."
    elif violation.keyword == "json":
        text = f"{violation.message}."
    elif len(path) == 2 and violation.keyword == "required":
        name = violation.names[0]
        text = f"this runner has no `{name}`, which must be {_description(name)}."
    elif len(path) == 2 and violation.keyword == "additionalProperties":
        name = violation.names[0]
        line = lines.line((*path, name))
        text = f"`{name}` is not a key of a runner; the keys are {', '.join(_properties())}."
    elif len(path) == 2:
        text = f"a runner is a mapping with keys among {', '.join(_properties())}."
    elif violation.keyword == "additionalProperties":
        name = violation.names[0]
        line = lines.line((name,))
        text = f"`{name}` is not a key here; the only one is `runners`."
    elif len(path) == 1 or violation.keyword == "required":
        text = "`runners` must be a list of at least one runner."
    else:
        text = "runners.yml is a mapping with the key `runners`, a list."
    return _Mistake(line, text)


def _runner_mistakes(
    runners: list[Any], lines: YamlLines, malformed: Collection[DocumentPath]
) -> Iterator[_Mistake]:
    """What the schema cannot express: repeated keys and names, unknown GPUs, and keys that need
    each other.

    malformed: the paths that violate the schema.
    """
    line_of_name: dict[str, int] = {}
    for index, entry in enumerate(runners):
        path: DocumentPath = ("runners", index)
        if not isinstance(entry, dict):
            continue
        yield from _repeated_keys(lines, path)
        name, gpu = entry.get("name"), entry.get("gpu")
        if isinstance(name, str) and name in line_of_name:
            yield _Mistake(
                lines.line((*path, "name")),
                f"`{name}` is also the name of the runner in line {line_of_name[name]}.",
            )
        elif isinstance(name, str):
            line_of_name[name] = lines.line(path)
        if isinstance(gpu, str) and (*path, "gpu") not in malformed:
            try:
                catalog.find_gpu(gpu)
            except InvalidSpec as error:
                yield _Mistake(lines.line((*path, "gpu")), str(error))
        if "gpu" in entry and "driver" not in entry:
            yield _Mistake(
                lines.line(path),
                f"this runner has a GPU and no `driver`, which must be {_description('driver')} "
                "(nvidia-smi prints it).",
            )
        for key in ("gpus", "driver"):
            if key in entry and "gpu" not in entry:
                yield _Mistake(
                    lines.line((*path, key)),
                    f"`{key}` is about GPUs, and this runner has no `gpu`.",
                )


def _repeated_keys(lines: YamlLines, path: DocumentPath) -> Iterator[_Mistake]:
    keys: set[str] = set()
    for key, line in lines.keys(path):
        if key in keys:
            yield _Mistake(line, f"`{key}` is repeated.")
        keys.add(key)


@functools.cache
def _properties() -> Mapping[str, Any]:
    """The schema of each key of a runner."""
    schema = schema_document("runners")
    properties = schema["properties"]["runners"]["items"]["properties"]
    assert isinstance(properties, dict)
    return properties


def _description(key: str) -> str:
    return str(_properties()[key]["description"])


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
        engine=entry.get("engine", False),
    )
