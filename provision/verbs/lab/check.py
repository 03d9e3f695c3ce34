"""`provision lab check`: what is wrong with a lab's repository."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from provision import ci
from provision import image as images
from provision import lockfile as locks
from provision.adapters import clustershell, openssh
from provision.catalog import facts
from provision.cluster.inventory import Inventory, read_inventory, select_nodes
from provision.core.dataclass import frozen
from provision.core.errors import ProvisionError, Unreachable
from provision.core.paths import LAB_FACTS
from provision.core.types import Lock, Verdict
from provision.workflow import lab_definition as definition
from provision.workflow.context import Context
from provision.workflow.lab_definition import Cluster, Lab, LabEnvironment, read_lab
from provision.workflow.plan import BuildRequest, make_plan
from provision_runtime.report.text import format_count

RUNNERS = "runners.yml"
# What the engines of clusters need on this machine to be asked.
COMMANDS: Mapping[definition.Engine, str] = {"slurm": "sinfo", "kubernetes": "kubectl"}
FORMS: Mapping[definition.Engine, str] = {
    "slurm": "slurm:PARTITION",
    "kubernetes": "k8s:SELECTOR",
}


@frozen
class LabCheck:
    """One thing that was checked. subject: a key of lab.yml, or a file."""

    subject: str
    verdict: Verdict
    message: str
    advice: str = ""


def check(context: Context, folder: Path) -> list[LabCheck]:
    """Check a lab's repository. Raises InvalidSpec for a lab.yml that is not one."""
    lab = read_lab(folder)
    checks = [
        LabCheck(subject="lab.yml", verdict="pass", message=f"{lab.name}: every key is valid")
    ]
    inventory = Inventory()
    try:
        if lab.inventory is not None:
            inventory = read_inventory(lab.inventory)
        for cluster in lab.clusters:
            checks.append(_check_nodes(lab, cluster, inventory))
    except ProvisionError as error:
        checks.append(_failed("nodes.yml", error))
    for cluster in lab.clusters:
        checks += _check_login(lab, cluster)
    for environment in lab.environments:
        checks += _check_environment(context, lab, environment)
    if (folder / RUNNERS).is_file():
        checks.append(_check_runners(folder / RUNNERS))
    if (folder / LAB_FACTS).is_file():
        checks.append(_check_facts(folder / LAB_FACTS))
    return checks


def _check_facts(path: Path) -> LabCheck:
    try:
        facts.tables_with(path)
    except ProvisionError as error:
        return _failed(path.name, error)
    return LabCheck(subject=path.name, verdict="pass", message="every fact has its source")


def _failed(subject: str, error: ProvisionError) -> LabCheck:
    return LabCheck(subject=subject, verdict="fail", message=error.message, advice=error.advice)


def _check_nodes(lab: Lab, cluster: Cluster, inventory: Inventory) -> LabCheck:
    """Whether `nodes` of a cluster means something; which nodes, where its engine answers."""
    subject = f"clusters.{cluster.name}.nodes"
    group = inventory.groups.get(cluster.nodes.removeprefix("@"))
    if cluster.engine != "ssh" and group is not None and group["from"] != cluster.engine:
        message = f"the group `{cluster.nodes}` of nodes.yml is from {group['from']}"
        return LabCheck(subject=subject, verdict="fail", message=f"{message}, not {cluster.engine}")
    command = COMMANDS.get(cluster.engine)
    if command is not None and shutil.which(command) is None:
        if group is None and ":" not in cluster.nodes:
            return LabCheck(
                subject=subject,
                verdict="fail",
                message=f"`{cluster.nodes}` is not a group in nodes.yml",
                advice=f"Groups: {', '.join(sorted(inventory.groups)) or 'none'}. Or write "
                f"{FORMS[cluster.engine]}.",
            )
        message = f"not asked: there is no {command} on this machine"
        return LabCheck(subject=subject, verdict="unknown", message=message)
    try:
        selection = select_nodes(cluster.nodes, lab.inventory)
    except Unreachable as error:
        return LabCheck(
            subject=subject,
            verdict="unknown",
            message=f"not asked: {error.message}",
            advice=error.advice,
        )
    except ProvisionError as error:
        return _failed(subject, error)
    names = clustershell.fold([node.name for node in selection.nodes])
    return LabCheck(subject=subject, verdict="pass", message=f"{cluster.nodes}: {names}")


def _check_login(lab: Lab, cluster: Cluster) -> Iterator[LabCheck]:
    subject = f"clusters.{cluster.name}.login"
    if lab.known_hosts is not None:
        for host in cluster.login:
            if not openssh.has_host_key(lab.known_hosts, host.rpartition("@")[2]):
                yield LabCheck(
                    subject=subject,
                    verdict="warn",
                    message=f"{lab.known_hosts.name} has no key of {host}",
                    advice=f"ssh-keyscan {host} >> {lab.known_hosts}, and compare it with the host's.",
                )
    if cluster.login:
        names = clustershell.fold(cluster.login)
        message = f"{names}: not contacted; `provision join --dry-run` logs in"
        yield LabCheck(subject=subject, verdict="unknown", message=message)


def _check_environment(
    context: Context, lab: Lab, environment: LabEnvironment
) -> Iterator[LabCheck]:
    subject = f"environments.{environment.name}"
    try:
        if environment.image is not None:
            images.parse_registry_reference(environment.image)
        plan = make_plan(context, BuildRequest(name=environment.name))
        lock = plan.lock
        if lock is None or not plan.lock_is_current:
            state = "is not of its spec.yml" if lock else "is missing"
            yield LabCheck(
                subject=subject,
                verdict="fail",
                message=f"its lock {state}",
                advice=f"provision lock {environment.name} --relock --envs {lab.envs}",
            )
            return
        locks.require_complete(lock, plan.pins)
    except ProvisionError as error:
        yield _failed(subject, error)
        return
    if not lock.portable:
        yield _not_portable(subject, lab, environment.name, lock)
        return
    packages = format_count(len(lock.packages), "package")
    message = f"torch {plan.resolution.local_version}, {packages} for {', '.join(lock.platforms)}"
    yield LabCheck(subject=subject, verdict="pass", message=message)


def _not_portable(subject: str, lab: Lab, name: str, lock: Lock) -> LabCheck:
    message = "its lock is not portable: its Python is of the machine where it was made"
    advice = (
        f"where a conda channel answers: provision lock {name} --relock --python-from channel "
        f"--envs {lab.envs}"
    )
    if lock.python_from == "channel":
        local = [package.name for package in lock.packages if package.url.startswith("file:")]
        message = (
            f"its lock is not portable: {', '.join(local) or 'packages'} are files of one machine"
        )
        advice = "add each as a wheel (`provision add NAME ./FOLDER`) or by a git address"
    return LabCheck(subject=subject, verdict="fail", message=message, advice=advice)


def _check_runners(path: Path) -> LabCheck:
    try:
        runners = ci.read_runners(path).runners
    except ProvisionError as error:
        return _failed(RUNNERS, error)
    names = ", ".join(runner.name for runner in runners)
    return LabCheck(subject=RUNNERS, verdict="pass", message=f"runners: {names}")
