"""Which release of torch a request comes to that leaves it open and names wheels: the newest with
which those wheels are as new as they can be.

Servers such as vLLM require exactly one release of torch. The facts alone would choose the newest
torch, and the index would then have only a release of the server that is years old.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from provision import catalog, resolver, sources
from provision.adapters import uv
from provision.core.errors import Unreachable, Unsolvable
from provision.core.package_names import package_name
from provision.core.requirement_urls import absolute_requirement
from provision.core.spec_fields import Spec
from provision.core.types import HostGpus, Lock, Resolution
from provision.workflow.context import Context


def leaves_torch_open(spec: Spec) -> bool:
    """Whether the wheels that a request names may decide its release of torch."""
    return bool(spec.pip) and spec.torch not in catalog.releases()


def as_locked(spec: Spec, lock: Lock) -> Spec:
    """The request with the release of torch that its lock holds, if it leaves the release open."""
    if not leaves_torch_open(spec):
        return spec
    names = {source.torch_package for source in sources.REGISTRY}
    locked = {
        package.version.partition("+")[0] for package in lock.packages if package.name in names
    }
    for release in catalog.matching_releases(spec.torch):
        if release.version in locked:
            return dataclasses.replace(spec, torch=release.version)
    return spec


def for_wheels(context: Context, spec: Spec, machine: HostGpus, resolution: Resolution) -> Spec:
    """The request with the release of torch that its wheels go with.

    resolution: what the facts alone choose. The request stays as it is if the wheels go with that
    release, and if they go with none: then the solver says why.
    """
    if not leaves_torch_open(spec):
        return spec
    possible = resolver.possible_releases(spec, machine)
    versions = _newest_wheels(context, spec, resolution, possible)
    release = versions.get("torch", "").partition("+")[0]
    if release not in possible or release == resolution.torch:
        return spec
    names = [package_name(text) for text in spec.pip]
    named = [f"{name} {versions[name]}" for name in names if name in versions]
    context.progress.say(
        f"torch {release} and not {resolution.torch}: {', '.join(named)} "
        f"{'goes' if len(named) == 1 else 'go'} with it"
    )
    return dataclasses.replace(spec, torch=release)


def _newest_wheels(
    context: Context, spec: Spec, resolution: Resolution, possible: Sequence[str]
) -> dict[str, str]:
    """The versions by name that the index has for the named wheels with one of these releases;
    nothing if it has none, or does not respond."""
    newest, oldest = possible[0], possible[-1]
    bounds = [f"torch>={oldest}", f"<={newest}"]
    bounds += [f"!={release}" for release in catalog.releases() if release not in possible]
    folder = context.folders.envs / (spec.name or "new")
    request = uv.ResolveRequest(
        requirements=tuple(absolute_requirement(text, folder) for text in spec.pip),
        constraints=(",".join(bounds),),
        python=resolution.python,
        glibc=resolution.glibc,
        platform=resolution.platforms[0],
        as_of=spec.as_of,
        mirrors=context.mirrors,
    )
    try:
        return uv.resolve_versions(request)
    except (Unsolvable, Unreachable):
        return {}
