"""`provision smoke`: testing a prefix, an image or both on this machine, now."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from typing import Any

from provision.adapters.docker import require_engine
from provision.core.paths import make_private_directory
from provision.core.types import Image, Prefix, SmokeResult, SmokeTarget
from provision.environment.activation import activation_variables
from provision.image import container_smoke
from provision.workflow.context import Context
from provision.workflow.ensure import ensure_runtime
from provision.workflow.image.sbom import environment_image
from provision.workflow.passport import record_smoke
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.project import require_prefix
from provision.workflow.smoke import request as smoke_requests
from provision.workflow.smoke import runner as smoke_runner


def smoke(context: Context, request: BuildRequest, *, with_image: bool) -> list[SmokeResult]:
    """Test an environment in its prefix, and perhaps in its image. Its passport gets the verdicts."""
    plan = make_plan(context, request)
    smoke_requests.check(plan.smoke_request)
    prefix = require_prefix(context.folders, plan.name, request.prefix)
    client, image = None, None
    targets: list[SmokeTarget] = ["prefix"]
    if with_image:
        image = environment_image(context, plan.name)
        client = require_engine("leave --image out")
        targets.append("image")
    ensure_runtime(context, prefix)
    results = [smoke_in(context, plan, target, prefix, image, client) for target in targets]
    if plan.smoke_request.is_whole:
        record_smoke(context, plan, prefix, results)
    return results


def smoke_in(
    context: Context,
    plan: Plan,
    target: SmokeTarget,
    prefix: Prefix,
    image: Image | None,
    client: Any | None,
) -> SmokeResult:
    """Run the smoke test in a prefix or an image.

    Its files stay, so that a finding can be examined.
    """
    request = plan.smoke_request
    # Machines that share a home may test at the same time.
    folder = context.folders.smoke(plan.name) / platform.node()
    out = (request.out.absolute() if request.out else folder) / target
    make_private_directory(folder)
    if request.out is None:
        shutil.rmtree(out, ignore_errors=True)  # of an earlier test, perhaps a killed one
        make_private_directory(out)
    with context.progress.meter("waiting for the next phase", 0):
        if target == "prefix":
            activation = activation_variables(prefix)
            return smoke_runner.in_prefix(
                prefix, plan.resolution, request, activation, out, context.on_smoke_line
            )
        assert image is not None and client is not None
        smoke_runner.remove_old_report(out)
        status, output = container_smoke.run_smoke(
            client,
            image,
            smoke_requests.arguments(plan.resolution, replace(request, folder=None)),
            out,
            folder=request.folder,
            timeout_s=request.timeout_s + smoke_runner.STARTING_S,
            gpus=plan.resolution.cuda is not None,
            on_line=context.on_smoke_line,
        )
        return smoke_runner.read_report(out, "image", status, output)
