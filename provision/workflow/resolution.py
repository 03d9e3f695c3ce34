"""From a spec to a resolution: spec.yml under options, this machine, and where Python comes from.

`provision.resolver` knows neither files nor machines nor channels; they are read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from provision import catalog, resolver, sources
from provision.adapters import conda, uv
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, NoSuchBuild, ProvisionError, ToolMissing, Unreachable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import ENVIRONMENT
from provision.core.platforms import Platform
from provision.core.requirement_lines import parse_lines
from provision.core.spec_fields import Spec
from provision.core.types import HostGpus, Lock, Resolution
from provision.resolver import spec as specs
from provision.workflow import named_wheels
from provision.workflow.context import Context, warn_once

PythonSource = Literal["channel", "host"]


@frozen
class ResolvedRequest:
    """What a request comes to: the build, and where its Python comes from."""

    python_from: PythonSource
    resolution: Resolution


def combine(
    path: Path,
    options: Mapping[str, Any],
    *,
    name: str,
    text: str | None = None,
    mirrors: Mirrors = NO_MIRRORS,
) -> Spec:
    """Options over a spec.yml, if there is one. text: what it is to hold, instead of the file's.
    mirrors: where the names of repositories are looked up."""
    content: Mapping[str, Any] = {}
    if text is not None:
        content = specs.parse(text.encode(), path)
    elif path.exists():
        content = specs.read(path)
    if content.get("pip"):
        content = {**content, "pip": with_names(content["pip"], path.parent, mirrors)}
    spec = specs.combine(content, options, name=name)
    if content.get("cuda") != "auto" or options.get("cuda") or not _depends_on_machine(spec):
        return spec
    # Machines share a folder of environments, so a file must mean the same on all of them.
    try:
        cuda = resolve(spec).cuda
        instead = f'; on this one it is {cuda}: write cuda: "{cuda}", or'
    except ProvisionError:
        instead = ": write a version, or"
    raise InvalidSpec(
        f"{path}: `cuda: auto` alone means a different CUDA on each machine{instead} name the "
        "machine with `gpu` and `driver`.",
        advice=(
            "`--cuda auto` on the command line means this machine; the first build writes "
            "the version into spec.yml."
        ),
    )


def with_names(texts: Sequence[str], folder: Path, mirrors: Mirrors = NO_MIRRORS) -> list[str]:
    """The requirements of a spec.yml with the names of those that are an address or a path alone.

    folder: its own, at which paths start. A name that environment.yml does not have already is read
    from the project or repository.
    """
    requirements = []
    rendered = ""
    for text in texts:
        (entry,) = parse_lines(text)
        assert entry.requirement is not None  # the spec was checked
        requirement = entry.requirement
        if requirement.is_path and not requirement.source.startswith("file:"):
            path = folder / Path(requirement.source).expanduser()
            address = os.path.relpath(path, folder)
            requirement = replace(requirement, source=f"file:{address}")
        if not requirement.name:
            # environment.yml may have it already.
            with suppress(OSError, UnicodeDecodeError):
                rendered = (folder / ENVIRONMENT).read_text(encoding="utf-8")
            match = re.search(
                rf"([\w.-]+)(?:\[[^\]]*\])? @ {re.escape(requirement.source)}(?=[\s'\"]|$)",
                rendered,
            )
            name = match[1] if match else ""
            if not name:
                source = requirement.source
                if requirement.is_path:
                    source = f"-e {folder / source.removeprefix('file:')}"
                name = uv.source_name(source, mirrors=mirrors)
            requirement = replace(requirement, name=name)
        # What is complete stays as it is written: its text is a part of the lock's inputs.
        requirement = replace(requirement, editable=False)
        requirements.append(text if requirement == entry.requirement else str(requirement))
    return requirements


def check_requirements(spec: Spec) -> Spec:
    """The spec. Raises InvalidSpec if the solver's parser refuses a conda requirement."""
    if spec.conda:
        from provision.adapters import conda

        mistakes = conda.spec_errors(spec.conda)
        if mistakes:
            raise InvalidSpec("\n".join(mistakes))
    return spec


def resolve(spec: Spec) -> Resolution:
    """The build and the pins that a spec comes to."""
    return resolver.resolve(spec, machine_for(spec))


def machine_for(spec: Spec) -> HostGpus | None:
    """This machine, if the spec requests the newest CUDA and names no machine itself."""
    if not _depends_on_machine(spec):
        return None
    from provision.core import host

    return host.this_machine()


def _depends_on_machine(spec: Spec) -> bool:
    return spec.cuda == "auto" and not (spec.gpu or spec.driver)


def resolve_with_python(
    context: Context, spec: Spec, lock: Lock | None, resolution: Resolution | None = None
) -> ResolvedRequest:
    """Decide where Python comes from, and resolve.

    The answer becomes part of the lock, which decides from then on.

    resolution: the spec's own, if the caller has it.
    """
    resolution = resolution or resolve(spec)
    machine = machine_for(spec) or HostGpus()
    if lock is not None:
        fitting = named_wheels.with_locked_torch(spec, lock, machine, resolution)
    else:
        fitting = named_wheels.fitting_wheels(context, spec, machine, resolution)
        fitting = named_wheels.with_served_cuda(context, fitting, machine)
    is_python_stated = spec.python is not None
    if fitting is not spec:
        spec, resolution = fitting, resolver.resolve(fitting, machine)
    locked_channel = lock is not None and lock.python_from == "channel"
    if spec.python_from == "channel" or (spec.python_from == "auto" and locked_channel):
        return ResolvedRequest(python_from="channel", resolution=resolution)
    if lock is not None and lock.python_from == "host":
        # With the Python that the lock holds, whichever Python runs provision.
        python = lock.find("python")
        if spec.python is None and python is not None:
            spec = replace(spec, python=catalog.minor(python.version))
        return ResolvedRequest(python_from="host", resolution=resolver.resolve(spec, machine))
    if spec.python_from == "auto":
        silent = unanswered_channels(context.solver, resolution.channels, resolution.platforms[0])
        if len(silent) < len(resolution.channels):
            return ResolvedRequest(python_from="channel", resolution=resolution)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in silent.items())
        if sources.by_name(resolution.source).manager == "conda":
            from_index = [source.name for source in sources.REGISTRY if source.manager == "pip"]
            raise Unreachable(
                f"Source {resolution.source} needs its conda channels, and none answers "
                f"({reasons}).",
                advice=f"Name a mirror with --mirror, or use --source {' or '.join(from_index)}.",
            )
        warn_once(
            context,
            f"no conda channel answers ({reasons}): Python comes from this machine, and the lock "
            "will not be portable",
        )
    check_host_python(spec, is_of_wheels=not is_python_stated)
    resolution = _resolve_for_host(spec, resolution, machine)
    return ResolvedRequest(python_from="host", resolution=resolution)


@cache
def unanswered_channels(
    solver: conda.Solver, channels: tuple[str, ...], platform: Platform
) -> dict[str, str]:
    """Asked once per run: naming and planning must not see two answers."""
    return solver.unreachable_channels(channels, platform)


def check_host_python(spec: Spec, *, is_of_wheels: bool = False) -> None:
    """Raises ToolMissing if this machine's Python is not the one that a spec requests, or that its
    wheels need."""
    from provision import channel

    version = channel.host_minor()
    if spec.python in (None, version):
        return
    cause, choice = f"Python {spec.python} was requested", f"Use --python {version}"
    if is_of_wheels:
        wheels = [text for text in spec.pip if text.endswith(".whl")] or spec.pip
        cause = f"{', '.join(f'`{text}`' for text in wheels)} needs Python {spec.python}"
        choice = f"Name a wheel for Python {version}"
    raise ToolMissing(
        f"{cause}, but Python would have to come from this machine, which has {version}.",
        advice=f"{choice}, run provision with Python {spec.python}, or use --channel to name a "
        "channel that answers.",
    )


def _resolve_for_host(spec: Spec, resolution: Resolution, machine: HostGpus) -> Resolution:
    """The resolution with this machine's Python: the caller's, if it has that Python already.

    Raises ToolMissing if the build excludes that Python.
    """
    from provision import channel

    version = channel.host_minor()
    if resolution.spec.python == version:
        return resolution
    try:
        return resolver.resolve(replace(spec, python=version), machine)
    except NoSuchBuild as error:
        # It refuses a build that exists with no Python at all in words of its own.
        resolver.resolve(spec, machine)
        raise ToolMissing(
            f"Python would have to come from this machine, which has {version}: {error.message}",
            advice=(
                "Run provision with a Python that the build supports, or use --channel to name a "
                f"channel that answers. {error.advice}"
            ),
        ) from error
