"""`provision launch`: writing a job for the engine of the chosen nodes, and submitting it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision import image as images
from provision import launch
from provision.adapters.http import sha256_of
from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster.folding import slurm_host_list
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.pack import install_path, pack_path, read_pack
from provision.core.errors import InvalidSpec, ProvisionError, ToolMissing
from provision.core.prefix_registry import prefix_path
from provision.core.tempdirs import temporary_directory
from provision.launch.jobs import SIGNAL_S
from provision.verbs.launch.feasible import check_feasible
from provision.verbs.launch.hosts import (
    new_key,
    refuse_nodes_of_slurm,
    ssh_options,
    start_on_hosts,
)
from provision.verbs.launch.jobs import (
    KUBERNETES_PREFIX,
    Engine,
    engine_of,
    kube_context,
)
from provision.verbs.launch.settings import LaunchSettings
from provision.workflow.context import Context
from provision.workflow.image.code import require_script
from provision.workflow.image.image import render_job
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.trust import require_trusted_path, require_trusted_prefix

KUBERNETES_SETTINGS = (
    "jobset", "queue", "topology", "priority", "scheduler", "keep", "disk", "network", "annotation",
    "rdma", "pull_secret",
)  # fmt: skip
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What `provision launch` is asked for. nodes: None: one of a pool, all of a list of hosts.

    prefix, image: where the environment is on the nodes; at most one of them. inventory: another
    nodes.yml than the one next to the envs folder. job: without its environment and what --on
    says. is_forced: submit what can never run as the cluster is now.
    """

    name: str
    selection: NodeSelection
    inventory: Path | None = None
    job: launch.JobSpec
    nodes: int | None = None
    log_folder: Path | None = None
    is_forced: bool = False
    prefix: Path | None = None
    image: str | None = None
    namespace: str | None = None
    settings: LaunchSettings
    options: launch.RunOptions


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job that is written and not submitted. nodes: the hosts of a plan for plain hosts."""

    engine: Engine
    format: launch.JobFormat
    job: launch.JobSpec
    text: str
    nodes: tuple[Node, ...]
    selection: NodeSelection


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """id: what `provision jobs` takes. log: its path, where there is one."""

    engine: Engine
    id: str
    log: str | None


def plan_job(context: Context, request: LaunchRequest, remake: Sequence[str]) -> PlannedJob:
    """Write the job. Raises InvalidSpec for everything that can be known before it is submitted."""
    plan = make_plan(context, BuildRequest(name=request.name))
    engine = engine_of(request.selection)
    _check_engine_options(engine, request)
    environment = _environment(context, plan, engine, request)
    format = _format(engine, environment, request)
    nodes = _node_count(engine, request)
    settings = request.settings
    signal_s = request.job.signal_s
    if signal_s is None and request.job.requeue:
        signal_s = SIGNAL_S
    job = dataclasses.replace(
        request.job,
        name=settings.job_name or _job_name(request.job.command, engine),
        environment=environment,
        nodes=nodes,
        signal_s=signal_s,
        lock=plan.lock.sha256 if plan.lock else None,
    )
    options = request.options
    if engine != "kubernetes":
        folder = str(Path.cwd())
        log_folder = str(request.log_folder.absolute()) if request.log_folder else None
        job = dataclasses.replace(job, folder=folder, log_folder=log_folder)
        _check_script(request.job.command)
        if isinstance(environment, launch.ImageEnvironment):
            working_folder = launch.parse_mount(f"{folder}:{folder}")
            options = dataclasses.replace(options, mounts=(working_folder, *options.mounts))
    else:
        require_script(context, plan, request.job.command, options.mounts)
    chosen = request.selection.nodes[:nodes]
    if engine == "slurm":
        job = _for_slurm(job, request, plan)
    elif engine == "kubernetes":
        job = dataclasses.replace(job, kubernetes=_kubernetes_options(request))
    else:
        refuse_nodes_of_slurm(context, request.selection)
        job = dataclasses.replace(job, ssh=ssh_options(request.selection, chosen))
    text = render_job(plan, format, job, options, remake)
    return PlannedJob(
        engine=engine,
        format=format,
        job=job,
        text=text,
        nodes=chosen if engine == "hosts" else (),
        selection=request.selection,
    )


def submit(planned: PlannedJob) -> SubmittedJob:
    """Hand the job to its engine."""
    job = planned.job
    if planned.engine == "slurm":
        if job.log_folder:  # Slurm makes none, and a job without its log ends at once
            Path(job.log_folder).mkdir(parents=True, exist_ok=True)
        with _file(planned.text, "job.sbatch") as path:
            identity = slurm_jobs.submit(path)
        pattern = re.sub("%[jA]", identity, launch.log_pattern(job))
        log = str(Path(job.folder or "/") / pattern.replace("%a", "*").replace("%%", "%"))
        return SubmittedJob(engine="slurm", id=identity, log=log)
    if planned.engine == "kubernetes":
        with _file(planned.text, "job.yaml") as path:
            key = None
            if job.nodes > 1:
                secret = launch.key_secret(job)
                key = kubernetes_jobs.JobKey(secret=secret, key=new_key())
            context = kube_context(planned.selection)
            kubernetes_jobs.submit(path, job.name, key, context, job.kubernetes.namespace)
        return SubmittedJob(engine="kubernetes", id=KUBERNETES_PREFIX + job.name, log=None)
    start_on_hosts(job, planned.selection, planned.nodes)
    return SubmittedJob(engine="hosts", id=job.name, log=None)


def _check_engine_options(engine: Engine, request: LaunchRequest) -> None:
    settings, slurm = request.settings, request.job.slurm
    options: dict[str, dict[str, object]] = {
        "kubernetes": {
            "--namespace": request.namespace,
            **{f"--set {name}": getattr(settings, name) for name in KUBERNETES_SETTINGS},
        },
        "slurm": {
            **{f"--{name}": value for name, value in vars(slurm).items() if name != "more"},
            "--log-dir": request.log_folder,
            "--on-hang requeue": request.job.on_hang == "requeue",
            "--set sbatch": slurm.more,
        },
    }
    names = {"kubernetes": "Kubernetes", "slurm": "Slurm"}
    for owner, values in options.items():
        misplaced = [option for option, value in values.items() if value]
        if misplaced and engine != owner:
            raise InvalidSpec(
                f"{', '.join(misplaced)}: only {names[owner]} has this.", advice="Leave it out."
            )
    if settings.jobset and settings.scheduler:
        raise InvalidSpec(
            "--set jobset and --set scheduler: Volcano and others group the pods of a Job.",
            advice="Leave jobset out.",
        )
    strength, colon, label = (settings.topology or "").rpartition(":")
    if settings.topology and (not settings.queue or settings.scheduler or not label):
        raise InvalidSpec("--set topology is for Kueue: give its queue with --set queue.")
    if colon and strength not in ("required", "preferred"):
        raise InvalidSpec(f"--set topology={settings.topology}: write LABEL or preferred:LABEL.")
    if engine == "kubernetes" and request.job.memory_mib == 0:
        raise InvalidSpec("--mem 0 (all memory) works only with Slurm.", advice="Write 64G.")
    if engine == "hosts" and (request.job.memory_mib is not None or request.job.gpu_type):
        raise InvalidSpec(
            "--mem and GPU types need a scheduler; plain hosts have none.",
            advice="Leave them out.",
        )
    if request.prefix is not None and request.image is not None:
        raise InvalidSpec("--prefix and --image cannot be combined.", advice="Choose one.")
    if engine == "kubernetes" and request.image is None:
        raise InvalidSpec(
            "Kubernetes runs images only.",
            advice="`provision image push` one to a registry that the nodes can reach, and name it "
            "with --image HOST/NAME:TAG.",
        )
    if engine == "hosts" and (request.image is not None or _is_pack(request.prefix)):
        raise InvalidSpec(
            "On plain hosts launch runs prefixes only, neither images nor packs.",
            advice="`provision ship` puts one there.",
        )


def _is_pack(path: Path | None) -> bool:
    """Whether --prefix names a packed environment, which nodes mount."""
    return path is not None and (path.suffix in SQUASHFS_SUFFIXES or path.is_file())


def _environment(
    context: Context, plan: Plan, engine: Engine, request: LaunchRequest
) -> launch.Environment:
    """Where the nodes have the environment: as requested, else where its pack is shipped to, else
    the prefix of this machine, which a shared file system may show to the nodes too."""
    if request.prefix is not None and _is_pack(request.prefix):
        path = _existing_file(context, request, request.prefix)
        return launch.SquashfsEnvironment(file=PurePosixPath(path), sha256=sha256_of(path))
    if request.image is not None:
        if engine == "kubernetes":
            return launch.ImageEnvironment(reference=_by_digest(context, request))
        path = _existing_file(context, request, Path(request.image))
        return launch.ImageEnvironment(reference=str(path), sha256=sha256_of(path))
    if request.prefix is not None:
        prefix = request.prefix.absolute()
    else:
        shipped = _shipped_path(context, plan, request.selection)
        prefix = Path(shipped) if shipped else prefix_path(context.folders, plan.name)
    if prefix.exists():  # else only nodes have it
        require_trusted_prefix(context.folders, prefix, request.inventory)
    return launch.PrefixEnvironment(path=PurePosixPath(prefix))


def _shipped_path(context: Context, plan: Plan, selection: NodeSelection) -> PurePosixPath | None:
    """Where `provision ship` puts the environment's latest pack; None if the current lock has not
    been packed. The key is part of the path, so a running job never sees another environment."""
    try:
        pack = read_pack(pack_path(context.folders, plan.name))
    except ToolMissing:
        return None
    if plan.lock is None or pack.sidecar["lock_sha256"] != plan.lock.sha256:
        context.progress.warn(
            f"{plan.name} was locked again after it was packed: the job uses the prefix of this "
            "machine, not the shipped one"
        )
        return None
    return install_path(selection.defaults.path, pack.key)


def _by_digest(context: Context, request: LaunchRequest) -> str:
    """An image's name with the digest that its registry now has for the tag, so that all pods and
    those of a restart get the same bytes."""
    name = request.image or ""
    reference = images.parse_engine_reference(name)
    architectures = {node.kubernetes.arch for node in request.selection.nodes if node.kubernetes}
    if "@" in reference or architectures - {"x86_64", ""}:  # the digest would be that of x86-64
        return reference
    try:
        registry_reference = images.base_registry_reference(reference)
        return registry_reference.with_digest(images.find_remote(registry_reference).digest)
    except ProvisionError as error:
        context.progress.warn(
            f"{name} stays a tag, which may name another image when a pod starts: {error.message}"
        )
        return reference


def _existing_file(context: Context, request: LaunchRequest, path: Path) -> Path:
    if not path.is_file():
        raise InvalidSpec(
            f"{path} is not a file on this machine, so its hash, which the nodes check first, is "
            "unknown.",
            advice="Name a file of a shared file system: `enroot import --output X.sqsh ...` and "
            "`apptainer build X.sif ...` make images, `provision pack` packs prefixes.",
        )
    require_trusted_path(context.folders, path.absolute(), request.inventory)
    return path.absolute()


def _format(
    engine: Engine, environment: launch.Environment, request: LaunchRequest
) -> launch.JobFormat:
    if engine == "kubernetes":
        return "jobset" if request.settings.jobset else "kubernetes"
    if engine == "hosts":
        return "ssh"
    if not isinstance(environment, launch.ImageEnvironment):
        return "sbatch"
    return "apptainer" if environment.reference.endswith(".sif") else "slurm-pyxis"


def _node_count(engine: Engine, request: LaunchRequest) -> int:
    available = len(request.selection.nodes)
    nodes = request.nodes or (available if engine == "hosts" else 1)
    if nodes > available:
        raise InvalidSpec(
            f"--nodes {nodes}, but --on `{request.selection.text}` has {available}.",
            advice=f"`provision nodes list --on '{request.selection.text}'` shows them.",
        )
    return nodes


def _job_name(command: Sequence[str], engine: Engine) -> str:
    """After the command; with an ending of its own where the engine gives no number."""
    word = command[1] if command[:1] == ("-m",) and len(command) > 1 else command[0]
    name = launch.dns_label(Path(word).name.removesuffix(".py"))
    return name if engine == "slurm" else f"{name[:40].rstrip('-')}-{secrets.token_hex(3)}"


def _check_script(command: Sequence[str]) -> None:
    if command[0].endswith(".py") and not Path(command[0]).is_file():
        raise InvalidSpec(
            f"There is no {Path(command[0]).absolute()}.",
            advice="Run launch in the folder of the script, which the nodes must see too.",
        )


def _for_slurm(job: launch.JobSpec, request: LaunchRequest, plan: Plan) -> launch.JobSpec:
    """The job with its partition, the nodes that --on leaves out, and its share of the cores."""
    partitions = {node.partition for node in request.selection.nodes}
    if len(partitions) > 1:
        raise InvalidSpec(
            f"--on `{request.selection.text}` has nodes of {', '.join(sorted(partitions))}; a job "
            "runs in one partition.",
            advice="Choose one partition.",
        )
    [partition] = partitions
    slurm = dataclasses.replace(request.job.slurm, partition=partition)
    if request.selection.is_assumed:
        return dataclasses.replace(job, slurm=slurm)
    rows = slurm_nodes.list_nodes(partition)
    names = {node.name for node in request.selection.nodes}
    members = [row for row in rows if row.name in names]
    unselected = [row.name for row in rows if row.name not in names]
    gpus = job.gpus
    if gpus is None and plan.resolution.cuda is not None:
        gpus = 1
    cpus = job.cpus or job.ranks
    if job.cpus is None and gpus:
        able = [row for row in members if row.gpus >= gpus]
        cpus = min((max(1, row.cpus * gpus // row.gpus) for row in able), default=None)
    exclude = slurm_host_list(unselected) if unselected else ""
    slurm = dataclasses.replace(slurm, exclude=exclude)
    job = dataclasses.replace(job, gpus=gpus, cpus=cpus, slurm=slurm)
    if not request.is_forced:
        check_feasible(job, slurm_nodes.read_partition(partition), members)
    return job


def _kubernetes_options(request: LaunchRequest) -> launch.KubernetesOptions:
    """Settings, and the nodes of --on: its own selector, or the nodes by their names."""
    prefix, _, selector = request.selection.text.partition(":")
    if prefix == "k8s":
        nodes = launch.parse_selector(selector)
    else:
        names = tuple(node.host or node.name for node in request.selection.nodes)
        term = launch.NodeRequirement(key="kubernetes.io/hostname", operator="In", values=names)
        nodes = (term,)
    if request.job.gpu_type and not request.job.gpu_type.startswith(launch.MIG):
        nodes = (*nodes, _product_requirement(request))
    settings = request.settings
    return launch.KubernetesOptions(
        namespace=request.namespace,
        queue=settings.queue,
        topology=settings.topology,
        priority=settings.priority,
        scheduler=settings.scheduler,
        ttl_s=launch.parse_duration(settings.keep) if settings.keep else None,
        disk_mib=launch.parse_memory(settings.disk) if settings.disk else None,
        networks=settings.network,
        annotations=tuple(map(launch.parse_annotation, settings.annotation)),
        rdma=launch.parse_resource(settings.rdma) if settings.rdma else None,
        secret=settings.pull_secret,
        nodes=nodes,
    )


def _product_requirement(request: LaunchRequest) -> launch.NodeRequirement:
    """The nodes with GPUs of a type: those whose product's name has it as one of its parts."""
    products = sorted({node.gpu_type for node in request.selection.nodes if node.gpu_type})
    gpu_type = request.job.gpu_type.lower()
    fitting = [name for name in products if gpu_type in (name.lower(), *name.lower().split("-"))]
    if request.selection.is_assumed:
        fitting = [request.job.gpu_type]
    if not fitting:
        raise InvalidSpec(
            f"--gpus {request.job.gpu_type}: no node of `{request.selection.text}` has such GPUs.",
            advice=f"They have {', '.join(products) or 'no label ' + launch.GPU_PRODUCT}.",
        )
    return launch.NodeRequirement(key=launch.GPU_PRODUCT, operator="In", values=tuple(fitting))


@contextlib.contextmanager
def _file(text: str, name: str) -> Iterator[Path]:
    with temporary_directory("launch") as folder:
        path = folder / name
        path.write_text(text, encoding="utf-8")
        yield path
