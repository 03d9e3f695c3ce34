"""`provision matrix`: which builds exist, why a request gets the build that it gets, and requests
for all builds that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from provision.catalog import minor, version_key
from provision.core.paths import SPEC
from provision.core.platforms import PLATFORM, PLATFORMS, Platform
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS
from provision.core.types import BuildSource
from provision.resolver import Explanation
from provision.resolver import explain as explain_spec
from provision.resolver import spec as specs
from provision.resolver.constraints import releases_of
from provision.resolver.table import Table, build_table, parse_query

if TYPE_CHECKING:
    from pathlib import Path

    from provision.workflow.context import Context
    from provision.workflow.plan import BuildRequest

# The options of `provision matrix lock` that are passed on to every environment.
PASSED_ON = (
    "python",
    "nccl",
    "glibc",
    "driver",
    "gpu",
    *(key.name for key in DEFAULT_PACKAGE_KEYS),
)


# Planning imports solver, lock files and images, which the table does not need.


def show(options: Mapping[str, Any]) -> Table:
    """The builds that fit the options."""
    return build_table(parse_query(options))


def explain(
    make_context: Callable[[], Context], envs: Path, name: str | None, options: Mapping[str, Any]
) -> Explanation:
    """`provision matrix explain`: why an environment, or a request without a name, is what it is.

    Asks no channel, and an index only about a release that the facts do not have.
    """
    from provision.workflow.context import missing_file
    from provision.workflow.resolution import check_requirements, combine, machine_for

    if name is None:
        spec = specs.combine({}, options, name="")
    else:
        path = envs / specs.check_name(name) / SPEC
        if not path.exists() and not options.get("torch"):
            error = missing_file(path, advice="")
            error.advice += " Or describe the environment with --torch and --cuda."
            raise error
        spec = combine(path, options, name=name)
    if not releases_of(spec.torch):
        from provision.workflow.index_facts import ensure_release

        context = make_context()
        ensure_release(context.folders, context.mirrors, spec)
    return explain_spec(check_requirements(spec), machine_for(spec))


def matrix_requests(
    options: Mapping[str, Any], *, newest: bool, relock: bool
) -> list[BuildRequest]:
    """A request for every build that fits, of the oldest torch first.

    It is for linux-64, unless the options or a spec.yml of that name say otherwise.

    newest: only the newest patch of each minor release.
    """
    from provision.workflow.plan import BuildRequest

    platforms: dict[tuple[str, str, BuildSource], list[Platform]] = {}
    table = build_table(
        parse_query({**options, "platform": options.get("platform") or (PLATFORM,)})
    )
    for row in sorted(table.cells, key=lambda row: (version_key(row.torch), version_key(row.cuda))):
        platforms.setdefault((row.torch, row.cuda, row.source), []).append(row.platform)
    if newest:
        # Builds come oldest first, so the last one of each minor release wins.
        latest = {(minor(build[0]), *build[1:]): build for build in platforms}
        platforms = {build: platforms[build] for build in latest.values()}
    passed_on = {name: options.get(name) for name in PASSED_ON}
    requests = []
    for (torch, cuda, source), listed in platforms.items():
        ordered = tuple(sorted(listed, key=PLATFORMS.index))
        build_options = {
            "torch": torch,
            "cuda": cuda,
            "source": source,
            "platforms": ordered if options.get("platform") else (),
            **passed_on,
        }
        requests.append(BuildRequest(options=build_options, relock=relock))
    return requests
