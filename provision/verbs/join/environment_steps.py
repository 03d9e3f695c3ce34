"""The steps of `provision join` that bring a member the lab's environments: prefix or image, kernel,
first job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from provision import lockfile as locks
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster import pack as packs
from provision.cluster.failures import REASONS
from provision.cluster.inventory import DEFAULT_PATH, read_inventory, select_nodes
from provision.core import host, prefix_registry, process
from provision.core.errors import IntegrityError, ProvisionError, SystemRefused, ToolMissing
from provision.core.json_text import parse_json
from provision.core.mirrors import path_from_url
from provision.core.types import Lock, Prefix
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import passport as passports
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.verbs.join.join_run import JoinRun, guarded, notes_of
from provision.verbs.join.steps import Note, pending, settled, unsettled, warning
from provision.workflow import installed, kernel
from provision.workflow.installed import tree_digests
from provision.workflow.lab_definition import Cluster, LabEnvironment
from provision.workflow.plan import BuildRequest, Plan
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke import smoke as smoke_command
from provision.workflow.smoke.nodes import NodesRequest, smoke_nodes
from provision.workflow.smoke.nodes_report import NodesResult
from provision.workflow.smoke.runner import SmokeRequest
from provision.workflow.trust import require_trusted_path, require_trusted_prefix
from provision_runtime.report import model
from provision_runtime.report.text import format_count

START_S = 60.0
# The share of Slurm's limit that starting srun and importing torch may take.
STARTING_SHARE = 0.4


def environments(run: JoinRun) -> Iterator[Note]:
    if not run.lab.environments:
        yield settled("lab.yml names no environments")
    for environment in run.lab.environments:
        yield from guarded(_prefix(run, environment), environment.name)


def _prefix(run: JoinRun, environment: LabEnvironment) -> Iterator[Note]:
    """What was shipped to this machine, if it is of the lab's lock; else installed from the lock."""
    name = environment.name
    plan = run.plan(environment)
    lock = plan.current_lock
    if lock is None:
        state = "is not of its spec.yml any more" if plan.lock else "is missing"
        yield unsettled(
            f"{name}: its lock in the lab's repository {state}",
            advice=f"Tell {run.lab.contact}: `provision lock {name} --relock` makes it.",
        )
        return
    prefix = installed_prefix(run, environment)
    if prefix is not None:
        yield _installed(name, prefix, "is installed")
        return
    shipped, problem = _shipped(run, name, lock)
    if problem:
        yield warning(f"{name}: {problem}; it is installed from the lock")
    if shipped is not None:
        yield from _use_shipped(run, name, shipped)
        return
    # Packages that the lock takes from a disk, and that are not on this one.
    missing = [
        package.filename
        for package in lock.packages
        if package.url.startswith("file:") and not path_from_url(package.url).exists()
    ]
    if missing:
        yield unsettled(
            f"{name}: its lock is not portable: it holds {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + " of the machine where it was made",
            advice=f"Tell {run.lab.contact}: `provision lock {name} --relock --python-from channel` "
            "takes Python from a channel.",
        )
        return
    if not run.act:
        packages = format_count(len(lock.packages), "package")
        yield pending(f"{name}: would install {packages} from its lock")
        return
    request = BuildRequest(name=name, prefix=_install_path(run, plan))
    prefix, _ = installed.create(run.context, request)
    run.changed = True
    run.refresh()
    yield _installed(name, prefix, "was installed from its lock")


def _installed(name: str, prefix: Prefix, how: str) -> Note:
    text = f"{name} {how}: {prefix.path} (lock {prefix.lock_sha256[:12]})"
    return settled(text)


def _install_path(run: JoinRun, plan: Plan) -> Path | None:
    """The usual place, where the recorded one is below a store that we only read."""
    default_path = run.context.folders.prefixes / plan.name
    return default_path if plan.prefix_path.is_relative_to(_store(run)) else None


def _store(run: JoinRun) -> Path:
    """Where the lab ships environments to."""
    inventory = run.lab.inventory
    return Path(read_inventory(inventory).defaults.path if inventory else DEFAULT_PATH)


def _shipped(run: JoinRun, name: str, lock: Lock) -> tuple[Prefix | None, str]:
    """The environment that was shipped to this machine's store; or why that which is there is not
    used."""
    link = _store(run) / name
    try:
        return (_checked_shipment(run, name, link, lock), "") if link.exists() else (None, "")
    except (ProvisionError, OSError) as error:
        return None, notes_of(error).message


def _checked_shipment(run: JoinRun, name: str, link: Path, lock: Lock) -> Prefix:
    """Raises an error unless nobody else has a hand in it, it is of this lock, and its files are those
    of its pack, as the store recorded it or as somebody whom lab.yml allows has signed it. Nothing
    in it runs before that."""
    path = link.resolve()
    folders, inventory = run.context.folders, run.lab.inventory
    record = path.parents[1] / "images" / f"{path.name}.json"
    for trusted in (link / "bin" / "python", record):
        require_trusted_path(folders, trusted, inventory)
    prefix = prefixes.find(name, path)
    if prefix is None:
        raise IntegrityError(f"{link} is not an environment of provision.")
    if prefix.lock_sha256 != lock.sha256:
        raise IntegrityError(f"{link} is of another lock ({prefix.lock_sha256[:12]}).")
    if drifts.find_package_drift(prefix, lock):
        raise IntegrityError(f"{link} does not have the packages of its lock any more.")
    if not runtime_package.is_current(path, runtime_package.load()):
        raise IntegrityError(f"{link} was shipped by another version of provision.")
    if run.lab.allowed_signers is not None:
        record = record.with_suffix(".signature")
        packed = packs.signed_statement(record, run.lab.allowed_signers)
    else:
        packed = packs.node_record(record)
    run.progress.info(f"reading every file of {path}")
    root = tree_digests(path, deep=True)["root"]
    if (root, path.name) != (packed.get("root"), packed.get("key")):
        raise IntegrityError(f"The files of {link} are not those of its pack ({record}).")
    try:
        process.run([prefix.python, "-I", "-c", "pass"], timeout_s=START_S)
    except ProvisionError as error:
        raise ToolMissing(f"{link} does not start here: {error.message}") from error
    return prefix


def _use_shipped(run: JoinRun, name: str, prefix: Prefix) -> Iterator[Note]:
    if not run.act:
        yield pending(f"{name}: would use what was shipped, {prefix.path}")
        return
    prefix_registry.record_prefix(run.context.folders, name, prefix.path)
    run.changed = True
    run.refresh()
    yield _installed(name, prefix, "was shipped to this machine")


# Kernels


def installed_prefix(run: JoinRun, environment: LabEnvironment) -> Prefix | None:
    """The prefix of an environment, if it is of the lab's lock, and no other user has a hand in
    it."""
    if not (run.context.folders.envs / environment.name / locks.FILE).is_file():
        return None
    plan = run.plan(environment)
    prefix = plan.reusable_prefix(plan.current_lock)
    if prefix is not None:
        try:
            require_trusted_prefix(run.context.folders, prefix.path, run.lab.inventory)
        except SystemRefused:
            return None  # what was shipped there is judged again, and says why
    return prefix


def register_kernels(run: JoinRun) -> Iterator[Note]:
    for environment in run.lab.environments:
        yield from guarded(_kernel(run, environment), environment.name)


def _kernel(run: JoinRun, environment: LabEnvironment) -> Iterator[Note]:
    name = environment.name
    prefix = installed_prefix(run, environment)
    if prefix is None:
        yield pending(f"{name}: waits for its environment")
        return
    if not kernels.has_launcher(prefix):
        yield settled(f"{name} has no {kernels.LAUNCHER}, so no kernel")
        return
    title = run.kernel_name(environment)
    if kernels.is_current(prefix, title):
        yield settled(f"{name} is in Jupyter's menu as {title}")
        return
    kernels.check_name(name)
    if not run.act:
        yield pending(f"{name}: would register {title}")
        return
    kernel.add_kernel(run.context, BuildRequest(name=name))
    run.changed = True
    yield settled(f"{name} is now in Jupyter's menu as {title}")


# The first job


def first_job(run: JoinRun) -> Iterator[Note]:
    """The first environment of lab.yml, here and on one node of each cluster."""
    if not run.lab.environments:
        yield settled("lab.yml names no environments, so nothing was tested")
        return
    environment, prefix = _tested_environment(run)
    if prefix is None:
        yield pending(f"waits for the environment {environment.name}")
        return
    if run.lab.policy.test_here:
        yield from guarded(_test_here(run, environment, prefix), "here")
    for cluster in run.lab.clusters:
        yield from guarded(_test_on(run, environment, prefix, cluster), cluster.name)


def _tested_environment(run: JoinRun) -> tuple[LabEnvironment, Prefix | None]:
    for environment in run.lab.environments:
        with suppress(ProvisionError):
            prefix = installed_prefix(run, environment)
            if prefix is not None:
                return environment, prefix
    return run.lab.environments[0], None


def _out(run: JoinRun) -> Path:
    return run.context.folders.data / "first-jobs" / run.lab.name


def _is_tested(run: JoinRun, test: str, prefix: Prefix) -> bool:
    """Whether the report of an earlier test is there, is a pass, and of this lock."""
    record = run.tests.get(test)
    if record is None or record["lock"] != prefix.lock_sha256:
        return False
    try:
        document = parse_json(Path(record["report"]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and model.succeeded(str(document.get("verdict")))


def _is_tested_here(run: JoinRun, prefix: Prefix) -> bool:
    """Whether this prefix has passed on this machine: a home may be shared by several."""
    passport = passports.find(run.context.folders, prefix.name)
    if passport is None or passport["prefix"]["path"] != str(prefix.path):
        return False
    for target, verdict in passports.verdicts(passport):
        if target != "prefix" or verdict.get("lock_sha256") != prefix.lock_sha256:
            continue
        if not passports.elsewhere(verdict, host.identity()):
            is_warning = verdict["verdict"] == model.WARN
            return verdict["verdict"] == model.PASS or (is_warning and not _is_strict(run))
    return False


def _test_here(run: JoinRun, environment: LabEnvironment, prefix: Prefix) -> Iterator[Note]:
    if _is_tested_here(run, prefix):
        yield settled(f"{environment.name} passed the smoke test here")
        return
    if not run.act:
        yield pending(f"would run `provision smoke {environment.name}` here")
        return
    smoke_request = SmokeRequest(profile="quick", out=_out(run), strict=_is_strict(run))
    request = BuildRequest(name=environment.name, smoke_request=smoke_request)
    [result] = smoke_command.smoke(run.context, request, with_image=False)
    report = result.evidence / smoke_runner.REPORT
    if model.succeeded(result.verdict):
        run.changed = True
        yield settled(f"{environment.name}: the smoke test here: {result.verdict}")
        return
    sentences = smoke_runner.failures([result])
    yield unsettled(
        f"{environment.name}: the smoke test here: {result.verdict}: {sentences[0]}",
        advice=f"The report: {report}",
    )


def _test_on(
    run: JoinRun, environment: LabEnvironment, prefix: Prefix, cluster: Cluster
) -> Iterator[Note]:
    """A job on one node of a cluster."""
    test = f"{environment.name} on {cluster.name}"
    command = f"`provision smoke {environment.name} --on {cluster.nodes} --nodes 1 --quick`"
    if cluster.engine == "kubernetes":
        yield kubernetes_note(environment, cluster)
        return
    if _is_tested(run, test, prefix):
        yield settled(f"{environment.name} passed a job on {cluster.name}")
        return
    if cluster.engine == "slurm" and shutil.which("sinfo") is None:
        hosts = ", ".join(cluster.login) or "a login host"
        yield unsettled(
            f"{cluster.name}: Slurm's commands are not on this machine",
            advice=f"Log in to {hosts} and run the same command there.",
        )
        return
    selection = select_nodes(cluster.nodes, run.lab.inventory)
    # Which partition takes no jobs; empty if all do.
    closed = ""
    for partition in sorted({node.partition for node in selection.nodes if node.partition}):
        state = slurm_nodes.read_partition(partition).state
        if state and state != "up":
            closed = f"the partition {partition} is {state}"
            break
    if closed:
        yield unsettled(
            f"{cluster.name}: {closed}, so no job starts there",
            advice=f"Run the same command again when it is open; {run.lab.contact} knows when.",
        )
        return
    if not run.act:
        yield pending(f"would run {command}")
        return
    policy = run.lab.policy
    smoke_request = SmokeRequest(
        profile="quick",
        timeout_s=policy.job_s * (1 - STARTING_SHARE),
        out=_out(run) / cluster.name,
        strict=_is_strict(run),
    )
    request = BuildRequest(name=environment.name, smoke_request=smoke_request)
    defaults = replace(selection.defaults, queue_s=policy.queue_s)
    selection = replace(selection, defaults=defaults)
    nodes = NodesRequest(selection=selection, count=1, job_s=policy.job_s)
    if cluster.account:
        os.environ.setdefault("SBATCH_ACCOUNT", cluster.account)
    result = smoke_nodes(run.context, request, nodes)
    yield from _judge_job(run, environment, prefix, cluster, result)


def kubernetes_note(environment: LabEnvironment, cluster: Cluster) -> Note:
    """Join starts no job there: a pod needs an image, a namespace and a queue, which lab.yml does
    not name."""
    image = environment.image or "HOST/NAME:TAG"
    return warning(
        f"{cluster.name}: join starts no job on Kubernetes, so nothing was tested there",
        advice=f"The test as a job: provision launch {environment.name} --on {cluster.nodes} "
        f"--image {image} --nodes 1 -- -m provision_runtime smoke --quick --out /tmp/smoke",
    )


def _is_strict(run: JoinRun) -> bool:
    return run.lab.policy.fail_on == "warn"


def _judge_job(
    run: JoinRun,
    environment: LabEnvironment,
    prefix: Prefix,
    cluster: Cluster,
    result: NodesResult,
) -> Iterator[Note]:
    name = environment.name
    report = result.evidence / "nodes.json"
    tested = ", ".join(node.node.name for node in result.tested)
    if model.succeeded(result.verdict):
        run.tests[f"{name} on {cluster.name}"] = {"lock": prefix.lock_sha256, "report": str(report)}
        run.changed = True
        job = f", job {result.job}" if result.job else ""
        text = f"{name}: the smoke test on {cluster.name} ({tested}{job}): {result.verdict}"
        yield settled(text)
        return
    for node, failure in result.failures.items():
        if failure.reason == "no-environment":
            advice = (
                f"Ask {run.lab.contact} to ship it: provision ship {name} --on {cluster.nodes}. Or "
                "let lab.yml name a `data:` folder that the nodes share."
            )
        else:
            advice = REASONS[failure.reason].advice
        yield unsettled(
            f"{cluster.name}: {node}: {REASONS[failure.reason].meaning} "
            f"({failure.message.rstrip('.')})",
            advice=advice,
        )
    if not result.failures:
        yield unsettled(
            f"{cluster.name}: the smoke test on {tested}: {result.verdict}",
            advice=f"The report: {report}",
        )
