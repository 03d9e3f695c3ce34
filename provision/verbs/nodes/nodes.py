"""`provision nodes`: which nodes are meant and how each is reached; whether they are fit."""

from __future__ import annotations

from provision.cluster import actions
from provision.cluster.fitness import NO_NEEDS, EnvironmentNeeds, NodeFitness, judge
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import merge_same_nodes, run_action
from provision.core.types import Progress
from provision.workflow.context import Context

CHECK_TIMEOUT_S = 60.0


def check(
    selection: NodeSelection, progress: Progress, needs: EnvironmentNeeds = NO_NEEDS
) -> list[NodeFitness]:
    """Ask every node for its facts and judge them."""
    arguments = {
        "path": str(selection.defaults.path),
        "rules": selection.defaults.rules,
        "name": needs.name,
    }
    with progress.meter("checking nodes", len(selection.nodes)) as meter:
        replies = run_action(
            selection.nodes,
            actions.FACTS,
            arguments,
            stage="check",
            timeout_s=CHECK_TIMEOUT_S,
            defaults=selection.defaults,
            on_reply=lambda _: meter.advance(1),
        )
    return [judge(reply, needs) for reply in merge_same_nodes(replies)]


def environment_needs(context: Context, name: str) -> EnvironmentNeeds:
    """What an environment of the envs folder needs of a node, from its spec and lock."""
    from provision import catalog, sources
    from provision.workflow.plan import BuildRequest, make_plan

    plan = make_plan(context, BuildRequest(name=name))
    resolution = plan.resolution
    build = None
    if resolution.cuda is not None:
        builds = sources.by_name(resolution.source).builds(catalog.releases()[resolution.torch])
        build = next(build for build in builds if build.cuda == resolution.cuda)
        build = build.for_platform(resolution.platforms[0])
    return EnvironmentNeeds(
        name=plan.name,
        platforms=resolution.platforms,
        glibc=resolution.glibc,
        cuda=resolution.cuda,
        build=build,
    )
