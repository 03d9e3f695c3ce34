"""`provision launch`: writing a job for the engine of the chosen nodes, and submitting it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from provision import launch
from provision.adapters.http import sha256_of
from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cli.hang_options import parse_hang_options
from provision.cluster.folding import slurm_host_list
from provision.cluster.inventory import NodeSelection
from provision.cluster.pack import pack_path, read_pack
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError, ToolMissing
from provision.core.prefix_registry import prefix_path
from provision.core.tempdirs import temporary_directory
from provision.image import registry as registries
from provision.image.base import parse_engine_reference
from provision.launch.jobs import SIGNAL_S
from provision.verbs.launch.feasible import check_feasible
from provision.verbs.launch.hosts import (
    new_key,
    refuse_nodes_of_slurm,
    ssh_options,
    start_on_hosts,
)
from provision.verbs.launch.jobs import Engine, engine_of, kubectl_of
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
SLURM_OPTIONS = ("account", "qos", "constraint", "array", "after")
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs")


@frozen
class LaunchRequest:
    """What `provision launch` is asked for, as its options have it.

    nodes: None: one of a pool, all of a list of hosts. prefix, image: where the environment is on the
    nodes; at most one of them. force: submit what can never run as the cluster is now.
    """

    name: str
    command: tuple[str, ...]
    selection: NodeSelection
    inventory: Path | None
    nodes: int | None
    gpus: str | None
    mem: str | None
    time: str | None
    variables: tuple[str, ...]
    requeue: int
    prefix: Path | None
    image: str | None
    mounts: tuple[str, ...]
    hang_after: str | None
    on_hang: launch.OnHang | None
    namespace: str | None
    settings: LaunchSettings
    account: str | None
    qos: str | None
    constraint: str | None
    array: str | None
    after: tuple[str, ...]
    log_dir: Path | None
    force: bool


@frozen
class PlannedJob:
    """A job that is written and not submitted."""

    engine: Engine
    format: launch.JobFormat
    job: launch.JobSpec
    text: str


@frozen
class SubmittedJob:
    """id: what `provision jobs` takes. log: its path, where there is one."""

    engine: Engine
    id: str
    log: str | None


def plan_job(context: Context, request: LaunchRequest, remake: Sequence[str]) -> PlannedJob:
    """Write the job. Raises InvalidSpec for everything that can be known before it is submitted."""
    plan = make_plan(context, BuildRequest(name=request.name))
    selection, settings, command = request.selection, request.settings, request.command
    engine = engine_of(selection)
    _check_engine_options(engine, request)
    gpu_type, gpus = launch.parse_gpus(request.gpus) if request.gpus else ("", None)
    environment = _environment(context, plan, engine, request)
    hang_after_s, on_hang = parse_hang_options(request.hang_after, request.on_hang)
    # Kubernetes runs images, in which neither this folder nor its path is.
    folder = None if engine == "kubernetes" else str(Path.cwd())
    job = launch.JobSpec(
        name=settings.job_name or _job_name(command, engine),
        command=command,
        environment=environment,
        nodes=_node_count(engine, request),
        gpus=gpus,
        gpu_type=gpu_type,
        ranks=settings.ranks,
        cpus=settings.cpus,
        memory_mib=launch.parse_memory(request.mem) if request.mem else None,
        variables=launch.parse_variables(request.variables),
        time_s=launch.parse_duration(request.time) if request.time else None,
        requeue=request.requeue,
        signal_s=settings.signal or (SIGNAL_S if request.requeue else None),
        lock=plan.lock.sha256 if plan.lock else None,
        folder=folder,
        log_folder=str(request.log_dir.absolute()) if request.log_dir else None,
        hang_after_s=hang_after_s,
        on_hang=on_hang,
    )
    mounts = tuple(map(launch.parse_mount, request.mounts))
    if engine == "kubernetes":
        require_script(context, plan, command, mounts)
        job = replace(job, kubernetes=_kubernetes_options(request, gpu_type))
        format: launch.JobFormat = "jobset" if settings.jobset else "kubernetes"
    else:
        if command[0].endswith(".py") and not Path(command[0]).is_file():
            raise InvalidSpec(
                f"There is no {Path(command[0]).absolute()}.",
                advice="Run launch in the folder of the script, which the nodes must see too.",
            )
        if engine == "slurm":
            job, format = _for_slurm(job, request, plan), "sbatch"
        else:
            refuse_nodes_of_slurm(context, selection)
            chosen = selection.nodes[: job.nodes]
            job, format = replace(job, ssh=ssh_options(selection, chosen)), "ssh"
        if isinstance(environment, launch.ImageEnvironment):
            format = "apptainer" if environment.reference.endswith(".sif") else "slurm-pyxis"
            mounts = (launch.parse_mount(f"{folder}:{folder}"), *mounts)
    text = render_job(plan, format, job, launch.RunOptions(mounts=mounts), remake)
    return PlannedJob(engine=engine, format=format, job=job, text=text)


def submit(planned: PlannedJob, selection: NodeSelection) -> SubmittedJob:
    """Hand the job to its engine."""
    job = planned.job
    if planned.engine == "hosts":
        start_on_hosts(job, selection)
        return SubmittedJob(engine="hosts", id=job.name, log=None)
    with temporary_directory("launch") as folder:
        if planned.engine == "kubernetes":
            path = folder / "job.yaml"
            path.write_text(planned.text, encoding="utf-8")
            kubectl = kubectl_of(selection, job.kubernetes.namespace)
            key = new_key() if job.nodes > 1 else None
            kubernetes_jobs.submit(kubectl, path, job.name, launch.key_secret(job), key)
            identity = kubernetes_jobs.PREFIX + job.name
            return SubmittedJob(engine="kubernetes", id=identity, log=None)
        if job.log_folder:  # Slurm makes none, and a job without its log ends at once
            Path(job.log_folder).mkdir(parents=True, exist_ok=True)
        path = folder / "job.sbatch"
        path.write_text(planned.text, encoding="utf-8")
        identity = slurm_jobs.submit(str(path))
        pattern = re.sub("%[jA]", identity, launch.log_pattern(job))
        log = str(Path(job.folder or "/") / pattern.replace("%a", "*").replace("%%", "%"))
        return SubmittedJob(engine="slurm", id=identity, log=log)


def _check_engine_options(engine: Engine, request: LaunchRequest) -> None:
    settings, image = request.settings, request.image
    options: dict[Engine, dict[str, object]] = {
        "kubernetes": {
            "--namespace": request.namespace,
            **{f"--set {name}": getattr(settings, name) for name in KUBERNETES_SETTINGS},
        },
        "slurm": {
            **{f"--{name}": getattr(request, name) for name in SLURM_OPTIONS},
            "--log-dir": request.log_dir,
            "--on-hang requeue": request.on_hang == "requeue",
            "--set sbatch": settings.sbatch,
        },
    }
    for owner, values in options.items():
        misplaced = [option for option, value in values.items() if value]
        if misplaced and engine != owner:
            raise InvalidSpec(
                f"{', '.join(misplaced)}: only {owner.title()} has this.", advice="Leave it out."
            )
    has_image = image is not None
    strength, colon, label = (settings.topology or "").rpartition(":")
    is_kueue = settings.queue and not settings.scheduler and label
    rules = (
        (
            settings.jobset and settings.scheduler,
            "--set jobset and --set scheduler: Volcano and others group the pods of a Job.",
        ),
        (
            settings.topology and not is_kueue,
            "--set topology is for Kueue: give its queue with --set queue.",
        ),
        (
            colon and strength not in ("required", "preferred"),
            f"--set topology={settings.topology}: write LABEL or preferred:LABEL.",
        ),
        (
            engine == "hosts" and (request.mem or ":" in (request.gpus or "")),
            "--mem and GPU types need a scheduler; plain hosts have none.",
        ),
        (request.prefix and has_image, "--prefix and --image cannot be combined."),
        (
            engine == "kubernetes" and not has_image,
            "Kubernetes runs images only: `provision image push` one to a registry that the nodes can "
            "reach, and name it with --image HOST/NAME:TAG.",
        ),
        (
            engine == "hosts" and (has_image or _is_pack(request.prefix)),
            "On plain hosts launch runs prefixes only, neither images nor packs: `provision ship` puts "
            "one there.",
        ),
    )
    for is_broken, message in rules:
        if is_broken:
            raise InvalidSpec(message)


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
    return selection.defaults.path / "envs" / pack.key


def _by_digest(context: Context, request: LaunchRequest) -> str:
    """An image's name with the digest that its registry now has for the tag, so that all pods and
    those of a restart get the same bytes."""
    name = request.image or ""
    reference = parse_engine_reference(name)
    architectures = {node.kubernetes.arch for node in request.selection.nodes if node.kubernetes}
    if "@" in reference or architectures - {"x86_64", ""}:  # the digest would be that of x86-64
        return reference
    try:
        registry_reference = registries.base_registry_reference(reference)
        return registry_reference.with_digest(registries.find_remote(registry_reference).digest)
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


def _node_count(engine: Engine, request: LaunchRequest) -> int:
    available = len(request.selection.nodes)
    nodes = request.nodes or (available if engine == "hosts" else 1)
    if nodes > available:
        raise InvalidSpec(
            f"--nodes {nodes}, but --on `{request.selection.text}` has {available}.",
            advice=f"`provision nodes list {request.selection.options()}` shows them.",
        )
    return nodes


def _job_name(command: Sequence[str], engine: Engine) -> str:
    """After the command; with an ending of its own where the engine gives no number."""
    token = command[1] if command[:1] == ("-m",) and len(command) > 1 else command[0]
    name = launch.dns_label(Path(token).name.removesuffix(".py"))
    return name if engine == "slurm" else f"{name[:40].rstrip('-')}-{secrets.token_hex(3)}"


def _for_slurm(job: launch.JobSpec, request: LaunchRequest, plan: Plan) -> launch.JobSpec:
    """The job with its partition, the nodes that --on leaves out, and its share of the cores."""
    selection = request.selection
    partitions = {node.partition for node in selection.nodes}
    if len(partitions) > 1:
        raise InvalidSpec(
            f"--on `{selection.text}` has nodes of {', '.join(sorted(partitions))}; a job runs in one "
            "partition.",
            advice="Choose one partition.",
        )
    for earlier in request.after:
        if not launch.is_job(earlier):
            raise InvalidSpec(
                f"--after {earlier}: not a job of Slurm.", advice="Write 123 or 123_4."
            )
    [partition] = partitions
    slurm = launch.SlurmOptions(
        partition=partition,
        account=request.account,
        qos=request.qos,
        constraint=request.constraint,
        array=launch.check_array(request.array) if request.array else None,
        after=request.after,
        more=request.settings.sbatch,
    )
    rows = slurm_nodes.list_nodes(partition)
    names = {node.name for node in selection.nodes}
    members = [row for row in rows if row.name in names]
    unselected = [row.name for row in rows if row.name not in names]
    gpus = job.gpus
    if gpus is None and plan.resolution.cuda is not None:
        gpus = 1
    cpus = job.cpus or job.ranks
    if job.cpus is None and gpus:
        able = [row for row in members if row.gpus >= gpus]
        cpus = min((max(1, row.cpus * gpus // row.gpus) for row in able), default=None)
    slurm = replace(slurm, exclude=slurm_host_list(unselected) if unselected else "")
    job = replace(job, gpus=gpus, cpus=cpus, slurm=slurm)
    if not request.force:
        check_feasible(job, slurm_nodes.read_partition(partition), members)
    return job


def _kubernetes_options(request: LaunchRequest, gpu_type: str) -> launch.KubernetesOptions:
    """Settings, and the nodes of --on: its own selector, or the nodes by their names."""
    selection, settings = request.selection, request.settings
    prefix, _, selector = selection.text.partition(":")
    if prefix == "k8s":
        nodes = launch.parse_selector(selector)
    else:
        names = tuple(node.host or node.name for node in selection.nodes)
        term = launch.NodeRequirement(key="kubernetes.io/hostname", operator="In", values=names)
        nodes = (term,)
    if gpu_type and not gpu_type.startswith(launch.MIG):
        nodes = (*nodes, _product_requirement(selection, gpu_type))
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


def _product_requirement(selection: NodeSelection, gpu_type: str) -> launch.NodeRequirement:
    """The nodes with GPUs of a type: those whose product's name has it as one of its parts."""
    products = sorted({node.gpu_type for node in selection.nodes if node.gpu_type})
    part = gpu_type.lower()
    fitting = [name for name in products if part in (name.lower(), *name.lower().split("-"))]
    if not fitting:
        raise InvalidSpec(
            f"--gpus {gpu_type}: no node of `{selection.text}` has such GPUs.",
            advice=f"They have {', '.join(products) or 'no label ' + launch.GPU_PRODUCT}.",
        )
    return launch.NodeRequirement(key=launch.GPU_PRODUCT, operator="In", values=tuple(fitting))
