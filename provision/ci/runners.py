"""runners.yml -> Runners, and how their workflow is made. provision/schemas/runners.schema.json defines
its keys and values, and docs/ci.md describes the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from provision import catalog
from provision.catalog import Gpu
from provision.core.checked_yaml import Mistake, read_checked_yaml
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform
from provision.core.schema import DocumentPath
from provision.core.yaml_text import YamlLines

FILE = Path("runners.yml")
TIMEOUT_MIN = 120  # minutes; a build from an empty cache downloads several GB
RETENTION_DAYS = 30  # GitHub's own default is 90, where the repository allows it
# Weekly, off the full hour, when many schedules start late.
SCHEDULE = "17 4 * * 1"
ADVICE = "docs/ci.md describes the file, with an example."
Across = Literal["first", "gpu"]


@frozen
class WorkflowSettings:
    """The workflow that is made for the runners.

    install: what pip installs on them to get provision. across: `gpu` for a job on each GPU
    architecture. gpus: of each smoke test; None: all of a runner, up to a limit. image: images too,
    where there is an engine. strict: warnings about speed fail jobs on GPUs.
    """

    install: str = ""
    schedule: str = SCHEDULE
    retention_days: int = RETENTION_DAYS
    across: Across = "first"
    gpus: int | None = None
    image: bool = False
    strict: bool = True


@frozen
class Runner:
    """A machine that takes CI jobs, or several of a kind under the same labels."""

    name: str
    # A job goes to a runner that has all of them.
    labels: tuple[str, ...]
    gpu: Gpu | None = None  # None: a CPU runner
    gpus: int = 0
    driver: str | None = None
    platform: Platform = PLATFORM
    glibc: str | None = None  # None: unknown, so not compared
    cpus: int | None = None
    timeout_min: int = TIMEOUT_MIN
    cache: str | None = None  # a folder of the machine that outlives jobs
    engine: bool = False  # whether jobs may use a Docker engine there


@frozen
class RunnersFile:
    runners: tuple[Runner, ...]
    workflow: WorkflowSettings


def read_runners(path: Path) -> RunnersFile:
    """A runners.yml, its runners in its order.

    Raises InvalidSpec with all mistakes at once, each with its line.
    """
    document = read_checked_yaml(path, "runners", further=_mistakes, advice=ADVICE)
    return RunnersFile(
        runners=tuple(_runner(entry) for entry in document["runners"]),
        workflow=WorkflowSettings(**document.get("workflow", {})),
    )


def _mistakes(document: dict[str, Any], lines: YamlLines) -> Iterator[Mistake]:
    """What the schema cannot express: repeated names, unknown GPUs, and keys that need each other."""
    line_of_name: dict[str, int] = {}
    for index, entry in enumerate(document["runners"]):
        path: DocumentPath = ("runners", index)
        name = entry["name"]
        if name in line_of_name:
            line = lines.line((*path, "name"))
            yield line, f"`{name}` is also the name of the runner in line {line_of_name[name]}."
        line_of_name.setdefault(name, lines.line(path))
        if "gpu" in entry:
            try:
                catalog.find_gpu(entry["gpu"])
            except InvalidSpec as error:
                yield lines.line((*path, "gpu")), str(error)
            if "driver" not in entry:
                yield (
                    lines.line(path),
                    "a runner with a `gpu` has a `driver` (nvidia-smi prints it).",
                )
            continue
        for key in ("gpus", "driver"):
            if key in entry:
                yield (
                    lines.line((*path, key)),
                    f"`{key}` is about GPUs, but this runner has no `gpu`.",
                )


def _runner(entry: dict[str, Any]) -> Runner:
    fields = dict(entry)
    labels, gpu = entry["labels"], entry.get("gpu")
    fields["labels"] = (labels,) if isinstance(labels, str) else tuple(labels)
    if gpu:
        fields["gpu"] = catalog.find_gpu(gpu)
        fields.setdefault("gpus", 1)
    fields["timeout_min"] = fields.pop("timeout", TIMEOUT_MIN)
    return Runner(**fields)
