"""`provision lab check`: what is wrong with a lab's repository, without contacting anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision import ci
from provision import lockfile as locks
from provision.catalog import facts
from provision.cluster.inventory import Inventory, read_inventory, select_nodes
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.paths import LAB_FACTS
from provision.image import registry as registries
from provision.workflow.context import Context
from provision.workflow.lab_definition import Cluster, Lab, LabEnvironment, read_lab
from provision.workflow.plan import BuildRequest, make_plan

RUNNERS = "runners.yml"
FORMS = {"slurm": "slurm:PARTITION", "kubernetes": "k8s:SELECTOR"}


@frozen
class LabProblem:
    """One thing that is wrong. subject: a key of lab.yml, or a file."""

    subject: str
    message: str
    advice: str = ""


def check(context: Context, folder: Path) -> tuple[Lab, list[LabProblem]]:
    """A lab, and what is wrong with its repository. Raises InvalidSpec for a lab.yml that is not one."""
    lab = read_lab(folder)
    problems: list[LabProblem] = []
    with _collected(problems, "nodes.yml"):
        inventory = read_inventory(lab.inventory) if lab.inventory else Inventory()
        for cluster in lab.clusters:
            with _collected(problems, f"clusters.{cluster.name}.nodes"):
                _check_cluster(lab, cluster, inventory)
    for environment in lab.environments:
        with _collected(problems, f"environments.{environment.name}"):
            _check_environment(context, lab, environment)
    for name, read in ((RUNNERS, ci.read_runners), (LAB_FACTS, facts.tables_with)):
        with _collected(problems, str(name)):
            if (folder / name).is_file():
                read(folder / name)
    return lab, problems


@contextmanager
def _collected(problems: list[LabProblem], subject: str) -> Iterator[None]:
    """An error of the block becomes a problem."""
    try:
        yield
    except ProvisionError as error:
        problems.append(LabProblem(subject=subject, message=error.message, advice=error.advice))


def _check_cluster(lab: Lab, cluster: Cluster, inventory: Inventory) -> None:
    """Whether `nodes` means something."""
    group = inventory.groups.get(cluster.nodes.removeprefix("@"))
    if cluster.engine == "ssh":
        select_nodes(cluster.nodes, lab.inventory)
    elif group is not None and group["from"] != cluster.engine:
        message = f"the group `{cluster.nodes}` of nodes.yml is from {group['from']}"
        raise InvalidSpec(f"{message}, not {cluster.engine}")
    elif group is None and ":" not in cluster.nodes:
        raise InvalidSpec(
            f"`{cluster.nodes}` is not a group in nodes.yml",
            advice=f"Groups: {', '.join(sorted(inventory.groups)) or 'none'}. Or write "
            f"{FORMS[cluster.engine]}.",
        )


def _check_environment(context: Context, lab: Lab, environment: LabEnvironment) -> None:
    name = environment.name
    if environment.image is not None:
        registries.parse_registry_reference(environment.image)
    plan = make_plan(context, BuildRequest(name=name))
    lock = plan.current_lock
    if lock is None:
        state = "is not of its spec.yml" if plan.lock else "is missing"
        advice = f"provision lock {name} --relock --envs {lab.envs}"
        raise InvalidSpec(f"its lock {state}", advice=advice)
    locks.require_complete(lock, plan.pins)
    if not lock.portable:
        message = "its Python is from the machine where it was made"
        advice = (
            f"on a machine where a conda channel answers: provision lock {name} --relock "
            f"--python-from channel --envs {lab.envs}"
        )
        if lock.python_from == "channel":
            local = [package.name for package in lock.packages if package.url.startswith("file:")]
            message = f"{', '.join(local) or 'packages'} are files of one machine"
            advice = "add each as a wheel (`provision add NAME ./FOLDER`) or by a git address"
        raise InvalidSpec(f"its lock is not portable: {message}", advice=advice)
