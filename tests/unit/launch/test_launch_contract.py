"""Contracts: every requirement has a reason, and every format expresses the same."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from provision import launch, render
from provision.core.errors import InvalidSpec
from provision.core.types import Resolution
from tests.paths import DATA
from tests.unit.image.test_image_config import resolution

REFERENCE = "provision/torch2.3-cuda12.1-py311:abababababab"
MOUNTS = (
    launch.parse_mount("/scratch/a b:/data:ro".replace(" ", "_")),
    launch.parse_mount("cache:/cache"),
)
GOLDEN = DATA / "golden" / "contracts"
NOTHING = launch.RunOptions()
ASKED = launch.RunOptions(shm_gib=16, mounts=MOUNTS, user="1234:100")


def job_of(format: str, command: tuple[str, ...] = (), **fields: Any) -> launch.JobSpec:
    environment: launch.Environment = launch.ImageEnvironment(reference=REFERENCE)
    if format == "sbatch":
        environment = launch.PrefixEnvironment(path=PurePosixPath("/shared/prefixes/toy"))
    return launch.JobSpec(name="toy", command=command, environment=environment, **fields)


def text(
    format: launch.RunFormat,
    options: launch.RunOptions = NOTHING,
    resolved: Resolution | None = None,
    command: tuple[str, ...] = (),
    **fields: Any,
) -> str:
    """A contract as `image contract` prints it. fields: of its job."""
    if format == "sbatch":
        options = NOTHING
    job = job_of(format, command, **fields)
    values = launch.contract_context(format, resolved or infiniband(), job, options)
    return render.render_contract(format, values, remake=["provision", "image", "contract", "toy"])


def infiniband() -> Resolution:
    plain = resolution()
    return dataclasses.replace(
        plain, spec=dataclasses.replace(plain.spec, infiniband=True, name="torch2.3-cuda12.1-py311")
    )


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_a_cpu_image_asks_for_no_gpu(format: launch.RunFormat) -> None:
    assert launch.docker_arguments(resolution(cuda=None)) == [
        "--init",
        "--shm-size=8g",
        "--ulimit",
        "stack=67108864",
    ]
    output = text(format, resolved=resolution(cuda=None)).replace("the ranks of all its GPUs", "")
    assert not re.search("gpu|nvidia|memlock: -1|ulimit -l", output, re.IGNORECASE)


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_every_format_gives_the_reasons_and_how_to_remake_it(format: launch.RunFormat) -> None:
    output = text(format, ASKED)
    assert "remake with: provision image contract toy" in output
    own_limits = ("memlock",)
    host_processes = ("network", "shm", "init", "infiniband")
    left_out = {
        "kubernetes": own_limits,
        "jobset": own_limits,
        "slurm-pyxis": ("network",),
        "apptainer": ("network", "infiniband"),
        "sbatch": host_processes,
    }.get(format, ())
    for need in launch.run_requirements(infiniband(), ASKED):
        assert need.what in left_out or need.reason in output, need
    assert text(format, ASKED) == output


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_the_command_in_a_contract_is_quoted(format: launch.RunFormat) -> None:
    command_line = [
        "provision",
        "image",
        "contract",
        "toy",
        "--",
        "python",
        "-c",
        "print('a')\nprint(['b  c'])",
        "\x1b[0m",
    ]
    values = launch.contract_context(format, infiniband(), job_of(format), NOTHING)
    output = render.render_contract(format, values, remake=command_line)
    (line,) = [line for line in output.splitlines() if "remake with: " in line]
    script = f"printf '%s\\0' {line.partition('remake with: ')[2]}"
    assert (
        subprocess.run(
            ["bash", "-c", script], check=True, capture_output=True, text=True
        ).stdout.split("\0")[:-1]
        == command_line
    )


@pytest.mark.parametrize("format", launch.RUN_FORMATS)
@pytest.mark.parametrize("uses_infiniband", [False, True])
@pytest.mark.parametrize("cuda", [None, "12.1"])
def test_every_format_can_be_written_for_every_environment(
    format: launch.RunFormat, uses_infiniband: bool, cuda: str | None
) -> None:
    """A template takes no reason that an environment may not have."""
    plain = resolution(cuda=cuda)
    resolved = dataclasses.replace(
        plain, spec=dataclasses.replace(plain.spec, infiniband=uses_infiniband, name="toy")
    )
    kubernetes = launch.KubernetesOptions(
        namespace="n", queue="q", rdma=("rdma/hca", 1), secret="s"
    )
    for fields in ({}, {"kubernetes": kubernetes, "cpus": 4, "time_s": 60}):
        assert "toy" in text(format, NOTHING, resolved, ("train.py",), **fields)


def test_pyxis_names_a_registry_and_no_engine() -> None:
    """Nodes have no Docker engine, so dockerd:// would fail there."""
    script = text("slurm-pyxis")
    assert "dockerd://" not in script
    assert f"enroot import --output toy.sqsh 'docker://REGISTRY#{REFERENCE}'" in script
    named = launch.RunOptions(reference="registry.example:5000/lab/toy:1")
    script = text("slurm-pyxis", named)
    assert " registry.example:5000/lab/toy:1\n" in script
    assert "'docker://registry.example:5000#lab/toy:1'" in script


@pytest.mark.parametrize("format", ["sbatch", "slurm-pyxis", "apptainer"])
def test_lower_hard_limits_do_not_end_the_job(format: launch.RunFormat) -> None:
    """Under `set -e`, and with a hard limit that an administrator set."""
    before, limits, _ = text(format).partition("memlock stays limited")
    script = before[before.index("set -euo pipefail") :] + limits + "' >&2\necho started\n"
    lowered = f"ulimit -S -s 1024; ulimit -H -s 2048; ulimit -l 64\n{script}"
    result = subprocess.run(["bash", "-c", lowered], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and result.stdout.endswith("started\n"), result.stderr
    assert "provision: the stack stays smaller" in result.stderr


def test_pod_without_infiniband_meets_pod_security_restricted() -> None:
    """kubernetes.io/docs/concepts/security/pod-security-standards, as of 1.37."""
    plain = dataclasses.replace(
        resolution(), spec=dataclasses.replace(resolution().spec, infiniband=False)
    )
    job = yaml.safe_load(text("kubernetes", launch.RunOptions(), resolved=plain))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_slurm_with_pyxis_is_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "job"
    options = dataclasses.replace(ASKED, mounts=(MOUNTS[0], launch.parse_mount("/cache:/cache")))
    script.write_text(text("slurm-pyxis", options, command=("torchrun", "my train.py")))
    subprocess.run(["bash", "-n", script], check=True)
    output = script.read_text()
    assert "--container-mounts=/scratch/a_b:/data:ro,/cache:/cache" in output
    assert output.endswith("""\n    torchrun 'my train.py' "$@"\n""")
    assert "#SBATCH --gpus-per-node=1" in output


def test_dollars_are_not_variables_of_the_runtime() -> None:
    """Compose and Kubernetes would put variables there; two dollars are one to both."""
    command = ("sh", "-c", "echo $HOME ${HOME} $(HOME) $$")
    options = launch.RunOptions(mounts=(launch.parse_mount("/a$b:/c$d"),))
    (service,) = yaml.safe_load(text("compose", options, command=command))["services"].values()
    twice = "echo $$HOME $${HOME} $$(HOME) $$$$"
    assert (service["command"][2], service["volumes"]) == (twice, ["/a$$b:/c$$d"])
    pod = yaml.safe_load(text("kubernetes", options, command=command))["spec"]["template"]["spec"]
    assert (pod["containers"][0]["command"][2], pod["volumes"][1]["hostPath"]["path"]) == (
        twice,
        "/a$b",
    )
    assert "'echo $HOME ${HOME} $(HOME) $$'" in text("docker", options, command=command)


@pytest.mark.parametrize(
    ("format", "mount", "reason"),
    [
        ("slurm-pyxis", "cache:/cache", "no named volumes"),
        ("apptainer", "cache:/cache", "no named volumes"),
        ("devcontainer", "/${localWorkspaceFolder}:/x", "a variable"),
    ],
)
def test_mounts_that_a_format_cannot_express(
    format: launch.RunFormat, mount: str, reason: str
) -> None:
    options = launch.RunOptions(mounts=(launch.parse_mount(mount),))
    with pytest.raises(InvalidSpec, match=reason):
        launch.check_contract(format, job_of(format), options)
    launch.check_contract("docker", job_of("docker"), options)


@pytest.mark.parametrize(
    ("format", "options", "fields", "reason"),
    [
        ("slurm-pyxis", launch.RunOptions(user="1234:100"), {}, "a user: enroot runs as"),
        ("apptainer", launch.RunOptions(user="1234:100"), {}, "a user: Apptainer runs as"),
        ("slurm-pyxis", launch.RunOptions(shm_gib=8), {}, "the size of shared memory"),
        ("sbatch", launch.RunOptions(shm_gib=8), {}, "it runs a prefix, no image"),
        ("sbatch", launch.RunOptions(reference="a/b:1"), {}, "the name of an image: it runs"),
        ("devcontainer", NOTHING, {"command": ("python",)}, "a command: the editor"),
        ("devcontainer", NOTHING, {"nodes": 2, "command": ("python",)}, "several nodes: an editor"),
        ("docker", NOTHING, {"time_s": 60}, "a time limit: nothing ends"),
        ("kubernetes", NOTHING, {"nodes": 2}, "several nodes without a command"),
    ],
)
def test_what_a_format_cannot_express_is_refused(
    format: launch.RunFormat, options: launch.RunOptions, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidSpec, match=f"^{format} does not support .*{reason}"):
        launch.check_contract(format, job_of(format, **fields), options)
    launch.check_contract(format, job_of(format), NOTHING)


# Several nodes, and ranks

TRAIN = ("train.py", "--data", "/d/a b", "$HOME")
RUNTIME = ["/opt/env/bin/python", "-s", "-m", "provision_runtime", "job"]


@pytest.mark.parametrize(
    ("format", "gpus", "expected"),
    [
        ("docker", None, "--ranks=gpus"),
        ("docker", 4, "--ranks=4 --gpus=4"),
        ("sbatch", None, "--ranks=1 --gpus=1"),
        ("slurm-pyxis", 8, "--ranks=8 --gpus=8"),
        ("apptainer", 2, "--ranks=2 --gpus=2"),
        ("sbatch", 0, "--ranks=1"),
    ],
)
def test_python_code_gets_a_rank_for_each_gpu(
    format: launch.RunFormat, gpus: int | None, expected: str
) -> None:
    assert f"provision_runtime job {expected} " in text(format, command=TRAIN, gpus=gpus)


@pytest.mark.parametrize("format", ["docker", "sbatch", "slurm-pyxis", "apptainer"])
def test_other_commands_of_one_node_are_started_as_they_are(format: launch.RunFormat) -> None:
    output = text(format, command=("python", "prepare.py"), gpus=2)
    assert "provision_runtime" not in output
    assert output.rstrip().endswith('python prepare.py "$@"')


def test_docker_on_several_hosts() -> None:
    script = text("docker", command=TRAIN, nodes=3, gpus=2)
    words = shlex.split(script.replace("\\\n", " ").partition("exec ")[2])
    assert "--network" in words
    start = words.index(RUNTIME[0])
    assert words[start:] == [
        *RUNTIME, "--nodes=3", "--ranks=2", "--gpus=2", "--id=toy", "--node=$NODE_RANK",
        "--head=$HEAD", "--", *TRAIN, "$@",
    ]  # fmt: skip
    completed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={})
    assert completed.returncode != 0
    assert "NODE_RANK: the number of this host, from 0 to 2" in completed.stderr


def test_a_job_that_restarts_has_its_limit_for_each_run() -> None:
    fields: dict[str, Any] = {"time_s": 3600, "requeue": 2, "signal_s": 90}
    documents = yaml.safe_load_all(text("kubernetes", command=TRAIN, nodes=4, **fields))
    spec = list(documents)[1]["spec"]
    assert (spec["backoffLimit"], "activeDeadlineSeconds" in spec) == (8, False)
    pod = spec["template"]["spec"]
    assert (pod["activeDeadlineSeconds"], pod["terminationGracePeriodSeconds"]) == (3600, 90)
    assert "--saves" in pod["containers"][0]["command"]
    jobset = yaml.safe_load(text("jobset", command=TRAIN, nodes=4, **fields))
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2
    # A disruption fails the Job for this reason, and the JobSet starts all pods again.
    [rule] = policy["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    [replicated] = jobset["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["backoffLimit"] == 0
    [rule] = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"


# Every case of every format

SIZES: list[dict[str, Any]] = [
    {},
    {"command": TRAIN},
    {"command": TRAIN, "nodes": 4, "gpus": 8, "cpus": 64},
    {"command": ("-m", "lab.train"), "nodes": 2, "gpus": 0},
    {"command": ("sh", "-c", "echo 'a b' $HOME"), "nodes": 2},
    {"command": TRAIN, "nodes": 2, "time_s": 3600, "signal_s": 120},
    {"command": TRAIN, "nodes": 2, "time_s": 3600, "signal_s": 120, "requeue": 3},
    {
        "command": TRAIN,
        "nodes": 2,
        "gpus": 4,
        "gpu_type": "mig-1g.12gb",
        "memory_mib": 65536,
        "variables": (("A", "b 'c' $(D)\n"),),
        "slurm": launch.SlurmOptions(array="0-9%2", after=("12",)),
        "kubernetes": launch.KubernetesOptions(
            queue="q", scheduler="volcano", priority="p", ttl_s=60, disk_mib=5, networks=("n",)
        ),
    },
]
SCRIPTS = ("sbatch", "slurm-pyxis", "apptainer", "docker")


def scripts() -> Iterator[tuple[str, str]]:
    for format in SCRIPTS:
        for number, size in enumerate(SIZES):
            host_folders = launch.RunOptions(mounts=MOUNTS[:1])
            yield f"{format}-{number}", text(format, host_folders, **size)  # type: ignore[arg-type]
    for number, size in enumerate(SIZES[1:]):
        packed = launch.SquashfsEnvironment(
            file=PurePosixPath("/shared/a b/toy.sqsh"), sha256="ab" * 32
        )
        job = dataclasses.replace(job_of("sbatch", **size), environment=packed)
        yield f"squashfs-{number}", rendered("sbatch", job)
    image = launch.ImageEnvironment(reference="/shared/a b/toy.sqsh", sha256="ab" * 32)
    for format in ("slurm-pyxis", "apptainer"):
        job = dataclasses.replace(job_of(format, **SIZES[2]), environment=image)
        yield f"{format}-file", rendered(format, job)  # type: ignore[arg-type]


def rendered(format: launch.JobFormat, job: launch.JobSpec) -> str:
    values = launch.contract_context(format, infiniband(), job, NOTHING)
    return render.render_contract(format, values, remake=["provision", "launch"])


@pytest.mark.needs("shellcheck")
def test_scripts_pass_shellcheck_and_bash(tmp_path: Path) -> None:
    paths = []
    for name, script in [
        *scripts(),
        *zip(launch.FILE_FORMATS, map(file_steps, launch.FILE_FORMATS)),
    ]:
        path = tmp_path / f"{name}.sh"
        path.write_text(script)
        subprocess.run(["bash", "-n", path], check=True)
        paths.append(path)
    # SC2016: dollars of a command are the command's own.
    completed = subprocess.run(
        ["shellcheck", "--exclude=SC2016", *paths], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout


def test_every_directive_of_sbatch_has_its_reason() -> None:
    for name, script in scripts():
        lines = script.splitlines()
        for number, line in enumerate(lines):
            if line.startswith("#SBATCH"):
                assert lines[number - 1].startswith("# "), (name, line)


# From 1.25, the oldest release with all fields that we use, to the newest whose schemas the package has.
KUBERNETES_VERSIONS = [f"1.{minor}" for minor in range(25, 38)]


@pytest.mark.parametrize("size", SIZES)
def test_manifests_fit_the_schemas_of_every_version(size: dict[str, Any]) -> None:
    import kubernetes_validate

    documents = list(yaml.safe_load_all(text("kubernetes", ASKED, **size)))
    jobset = yaml.safe_load(text("jobset", ASKED, **size))
    [replicated] = jobset["spec"]["replicatedJobs"]
    # What a JobSet makes is a Job.
    documents.append({"apiVersion": "batch/v1", "kind": "Job", **replicated["template"]})
    for version in KUBERNETES_VERSIONS:
        for document in documents:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("size", SIZES)
def test_jobsets_fit_the_published_types(size: dict[str, Any]) -> None:
    """Fields that JobSet does not have are dropped from what is read, so that it differs."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    jobset = yaml.safe_load(text("jobset", ASKED, **size))
    [replicated] = jobset["spec"]["replicatedJobs"]
    known = JobsetV1alpha2JobSet.from_dict(jobset).to_dict()
    # The test above reads the Job, by the schemas of Kubernetes.
    known["spec"]["replicatedJobs"][0]["template"] = replicated["template"]
    assert known == jobset


@pytest.mark.parametrize("size", ["one-node", "four-nodes"])
@pytest.mark.parametrize("format", launch.RUN_FORMATS)
def test_contracts_are_as_reviewed(
    format: launch.RunFormat, size: str, request: pytest.FixtureRequest
) -> None:
    """One node: with all options of a container. Four: with ranks and, where there are some, limits
    and Kubernetes' own options."""
    fields: dict[str, Any] = {}
    if size == "four-nodes" and format != "devcontainer":
        fields |= {"command": TRAIN, "nodes": 4, "gpus": 8, "cpus": 64, "lock": "cd" * 32}
        if format not in ("docker", "compose"):
            fields |= {"time_s": 14400, "signal_s": 120, "requeue": 3}
        fields["kubernetes"] = launch.KubernetesOptions(
            namespace="lab",
            queue="gpus",
            rdma=("rdma/hca_shared_devices_a", 2),
            secret="registry",
            nodes=launch.parse_selector("a=b,!cordoned"),
        )
    options = NOTHING
    if size == "one-node":
        fields["command"] = () if format == "devcontainer" else ("python", "-c", "print('a: b')")
        mounts = MOUNTS[:1] if format in ("slurm-pyxis", "apptainer") else MOUNTS
        options = dataclasses.replace(ASKED, mounts=mounts)
    output = text(format, options, **fields)
    path = GOLDEN / size / Path(render.CONTRACTS[format]).name
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(output)
    assert output == path.read_text()


def file_steps(format: launch.FileFormat) -> str:
    values = launch.file_context(infiniband(), REFERENCE)
    command = ["provision", "image", "contract", "toy", "--format", format]
    return render.render_contract(format, values, remake=command)


@pytest.mark.parametrize("format", launch.FILE_FORMATS)
def test_steps_to_an_image_file_are_as_reviewed(
    format: launch.FileFormat, request: pytest.FixtureRequest
) -> None:
    output = file_steps(format)
    path = GOLDEN / Path(render.CONTRACTS[format]).name
    if request.config.getoption("--update-golden"):
        path.write_text(output)
    assert output == path.read_text()
