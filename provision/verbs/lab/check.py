"""`provision lab`: a first lab.yml from what this machine says, and checks of one."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision import ci, render
from provision import image as images
from provision import lockfile as locks
from provision.adapters import clustershell, openssh, uv
from provision.adapters.conda import condarc
from provision.adapters.slurm import nodes as slurm_nodes
from provision.adapters.slurm.nodes import SlurmNode
from provision.catalog import facts
from provision.cluster.failures import REASONS, classify
from provision.cluster.inventory import Inventory, read_inventory, select_nodes
from provision.core.atomic import atomic_write
from provision.core.errors import InUse, ProvisionError, Unreachable
from provision.core.host import current_umask
from provision.core.mirrors import PACKAGE_INDEX
from provision.core.paths import LAB_FACTS
from provision.core.types import Lock, Progress, Verdict
from provision.verbs.lab import draft
from provision.verbs.lab.draft import MachineFacts
from provision.workflow import lab_definition as definition
from provision.workflow.context import Context
from provision.workflow.lab_definition import Cluster, Lab, LabEnvironment, read_lab
from provision.workflow.plan import BuildRequest, make_plan
from provision_runtime.report.text import format_count

RUNNERS = "runners.yml"
KNOWN_HOSTS = "known_hosts"
# Names that centers give to file systems for large files.
SCRATCH_FOLDERS = ("/scratch", "/work", "/lustre", "/gpfs", "/data")
CONNECT_S = 5.0
PROBE_S = 20.0
# What the engines of clusters need on this machine to be asked.
COMMANDS: Mapping[definition.Engine, str] = {"slurm": "sinfo", "kubernetes": "kubectl"}
FORMS: Mapping[definition.Engine, str] = {
    "slurm": "slurm:PARTITION",
    "kubernetes": "k8s:SELECTOR",
}


@dataclass(frozen=True, kw_only=True)
class LabCheck:
    """One thing that was checked. subject: a key of lab.yml, or a file."""

    subject: str
    verdict: Verdict
    message: str
    advice: str = ""


def check(context: Context, folder: Path, *, probe: bool) -> list[LabCheck]:
    """Check a lab's repository. probe: also log in to its hosts, and ask registries.

    Raises InvalidSpec for a lab.yml that is not one.
    """
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
        checks += _check_login(lab, cluster, probe=probe)
    for environment in lab.environments:
        checks += _check_environment(context, lab, environment, probe=probe)
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


def _check_login(lab: Lab, cluster: Cluster, *, probe: bool) -> Iterator[LabCheck]:
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
    if not cluster.login:
        return
    if not probe:
        names = clustershell.fold(cluster.login)
        message = f"{names}: not contacted (--probe logs in)"
        yield LabCheck(subject=subject, verdict="unknown", message=message)
        return
    for output in clustershell.run(cluster.login, "true", connect_s=CONNECT_S, timeout_s=PROBE_S):
        if output.status == 0:
            message = f"{output.node}: ssh lets you in"
            yield LabCheck(subject=subject, verdict="pass", message=message)
            continue
        stdout = output.stdout.decode(errors="replace")
        reason, message = classify(output.status, stdout, output.stderr)
        yield LabCheck(
            subject=subject,
            verdict="fail",
            message=f"{output.node}: {REASONS[reason].meaning} ({message.rstrip('.')})",
            advice=REASONS[reason].advice,
        )


def _check_environment(
    context: Context, lab: Lab, environment: LabEnvironment, *, probe: bool
) -> Iterator[LabCheck]:
    subject = f"environments.{environment.name}"
    if environment.source == "image":
        yield _check_image(subject, environment, probe=probe)
        return
    try:
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
        locks.require_complete(lock, plan.pins_in_environment_file())
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


def _check_image(subject: str, environment: LabEnvironment, *, probe: bool) -> LabCheck:
    assert environment.image is not None
    try:
        reference = images.parse_registry_reference(environment.image)
        if not probe:
            message = f"{environment.image}: not asked for (--probe asks its registry)"
            return LabCheck(subject=subject, verdict="unknown", message=message)
        images.find_remote(reference)
    except ProvisionError as error:
        return _failed(subject, error)
    return LabCheck(subject=subject, verdict="pass", message=f"{environment.image} is there")


def _check_runners(path: Path) -> LabCheck:
    try:
        runners = ci.read_runners(path).runners
    except ProvisionError as error:
        return _failed(RUNNERS, error)
    names = ", ".join(runner.name for runner in runners)
    return LabCheck(subject=RUNNERS, verdict="pass", message=f"runners: {names}")


# init


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The files of a new lab's repository, by path; and those that exist and stay as they are."""

    texts: Mapping[Path, str]
    existing: tuple[Path, ...]


def draft_lab(folder: Path, progress: Progress, name: str | None = None) -> Draft:
    """What `init` would write. Raises InUse if there is a lab.yml."""
    if (folder / definition.FILE).exists():
        raise InUse(
            f"{folder / definition.FILE} exists.",
            advice="`provision lab check` checks it; move it away to start anew.",
        )
    facts = _machine_facts(progress)
    specs = (folder / definition.ENVS).glob(f"*/{render.SPEC}")
    environments = sorted(path.parent.name for path in specs)
    contact = f"{getpass.getuser()} on {facts.host}"
    values = draft.lab_values(facts, name or folder.name, contact, environments)
    texts = {folder / definition.FILE: render.render_lab(values)}
    if facts.nodes:
        inventory = render.render_inventory(draft.inventory_values(facts))
        texts[folder / definition.INVENTORY] = inventory
    if facts.keys:
        texts[folder / KNOWN_HOSTS] = draft.known_hosts_text(facts)
    existing = tuple(path for path in texts if path.exists())
    new = {path: text for path, text in texts.items() if path not in existing}
    return Draft(texts=new, existing=existing)


def write_draft(files: Draft) -> None:
    for path, text in files.texts.items():
        atomic_write(path, text)


def _machine_facts(progress: Progress) -> MachineFacts:
    home = Path.home()
    scratch = [Path(name) for name in SCRATCH_FOLDERS if _is_apart(Path(name), home)]
    return MachineFacts(
        host=_host_name(),
        nodes=tuple(_slurm_nodes(progress)),
        mirrors=tuple(_mirrors(home)),
        scratch=tuple(scratch),
        keys=tuple(openssh.host_keys()),
        umask=current_umask(),
    )


def _host_name() -> str:
    """The full name, where the resolver knows one."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def _is_apart(folder: Path, home: Path) -> bool:
    """Whether a folder is a file system other than that of homes."""
    try:
        return folder.is_dir() and folder.stat().st_dev != home.stat().st_dev
    except OSError:
        return False


def _slurm_nodes(progress: Progress) -> list[SlurmNode]:
    if shutil.which("sinfo") is None:
        return []
    try:
        return slurm_nodes.list_nodes()
    except ProvisionError as error:
        progress.warn(f"Slurm's nodes are left out: {error}")
        return []


def _mirrors(home: Path) -> Iterator[tuple[str, str, str]]:
    files = condarc.condarc_files(os.environ, home)
    for name, address in condarc.condarc_mirrors(files).items():
        yield name, address, "conda's configuration"
    settings = uv.configured_settings()
    if settings.default_index is not None:
        origins = ", ".join(settings.origins)
        yield PACKAGE_INDEX, settings.default_index, origins
