"""What a job may be, and how users write its parts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import PurePosixPath
from typing import Any

import pytest

from provision import launch
from provision.core.errors import InvalidSpec
from provision.launch.durations import slurm_time
from provision.launch.jobs import JobSpec
from provision.launch.kubernetes import pod_annotations
from provision.launch.slurm import directives
from tests.unit.image.test_image_config import resolution
from tests.unit.launch.test_launch_contract import job_of, rendered

REASONS = {"gpus": "CUDA"}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90m", 5400),
        ("4h", 14400),
        ("2d", 172800),
        ("1d12h", 129600),
        ("45s", 45),
        ("60", 3600),  # Slurm's minutes
        ("1:30", 90),
        ("12:30:00", 45000),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
    ],
)
def test_time_limits(written: str, seconds: int) -> None:
    assert launch.parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "0", "-1", "4 hours", "1h30", "1.5h", "999999d", "1:2:3:4", "h", "2-"]
)
def test_what_is_no_time_limit(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a time limit"):
        launch.parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(60, "00:01:00"), (61, "00:02:00"), (14400, "04:00:00"), (129600, "1-12:00:00")],
)
def test_time_limits_as_slurm_reads_them(seconds: int, written: str) -> None:
    assert slurm_time(seconds) == written


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "2gpu"}, "cannot be named '2gpu'"),
        ({"name": "a" * 51}, "at most 50 characters"),
        ({"name": "Train"}, "lower case"),
        ({"command": ("torchrun", "train.py")}, "starts ranks itself"),
        ({"command": ("/opt/env/bin/torchrun", "train.py")}, "starts ranks itself"),
        ({"command": ("-m",)}, "needs the name of a module"),
        ({"command": ("hostname",), "ranks": 2}, "ranks is for Python code"),
        ({"command": ("train.py",), "signal_s": 10}, "no time to save"),
        ({"command": ("train.py",), "signal_s": 120, "time_s": 180}, "less for training"),
        ({"signal_s": 120}, "nothing saves a checkpoint"),
        ({"command": ("sh", "x"), "on_hang": "end"}, "--on-hang are for Python code"),
        ({"command": ("sh", "x"), "hang_after_s": 9}, "--on-hang are for Python code"),
        ({"command": ("a.py",), "on_hang": "requeue"}, "--on-hang requeue needs --requeue N"),
    ],
)
def test_jobs_that_cannot_run(fields: dict[str, Any], reason: str) -> None:
    environment = launch.PrefixEnvironment(path=PurePosixPath("/p"))
    with pytest.raises(InvalidSpec, match=reason):
        launch.check_job(
            JobSpec(**{"name": "a", "environment": environment, **fields}), resolution()
        )


def test_all_problems_are_named_at_once() -> None:
    job = job_of("sbatch", ("torchrun",), gpus=2, signal_s=1)
    with pytest.raises(InvalidSpec) as caught:
        launch.check_job(job, resolution(cuda=None))
    for problem in ("built for the CPU", "starts ranks itself", "no time to save"):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("torch2.3-cuda12.1-py311", "torch2-3-cuda12-1-py311"),
        ("2gpu", "job-2gpu"),
        ("My_Job.", "my-job"),
        ("a" * 80, "a" * 50),
        ("...", "job"),
    ],
)
def test_labels(name: str, label: str) -> None:
    assert launch.dns_label(name) == label
    environment = launch.PrefixEnvironment(path=PurePosixPath("/p"))
    launch.check_job(JobSpec(name=label, environment=environment), resolution())


# Slurm


def options_of(**fields: Any) -> dict[str, str]:
    job = job_of("sbatch", ("train.py",), **fields)
    made = directives(job, job.gpus or 0, REASONS)
    assert all(directive.reason for directive in made)
    return dict(str(directive).removeprefix("--").partition("=")[::2] for directive in made)


def test_where_the_job_runs() -> None:
    slurm = launch.SlurmOptions(
        partition="gpu", exclude="n[3,7]", account="lab", more=("--exclusive",)
    )
    options = options_of(slurm=slurm, folder='/home/u/a "b" c')
    assert options["chdir"] == '"/home/u/a \\"b\\" c"'
    assert options["output"] == "toy-%j.log"
    assert (options["partition"], options["exclude"]) == ("gpu", "n[3,7]")
    assert (options["account"], options["exclusive"]) == ("lab", "")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("account=lab", "is not an option of sbatch"),
        ("-A lab", "is not an option of sbatch"),
        ("--nodes=3", "is set by provision: --nodes"),
        ("--gpus-per-task=1", "hide from each rank"),
        ("--array=1-3", "is set by provision: --array"),
        ("--account=a\nrm", "is not an option of sbatch"),
    ],
)
def test_options_of_sbatch_that_a_user_may_not_give(written: str, reason: str) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        launch.parse_option(written)


def test_what_people_ask_slurm_for() -> None:
    slurm = launch.SlurmOptions(
        qos="high", constraint="a&b", array="0-9%2", after=("12", "13_4"), more=("--mem-bind=no",)
    )
    options = options_of(
        slurm=slurm, gpus=4, gpu_type="a100", memory_mib=2048, folder="/w", log_folder="/l 50%"
    )
    assert options["gpus-per-node"] == "a100:4"
    assert options["mem"] == "2048M"
    assert options["output"] == '"/l 50%%/toy-%A_%a.log"'
    assert (options["dependency"], options["kill-on-invalid-dep"]) == ("afterok:12:13_4", "yes")
    assert (options["qos"], options["constraint"]) == ("high", '"a&b"')


def test_an_option_of_sbatch_that_launch_writes_too() -> None:
    """sbatch would take the last one without a word."""
    with pytest.raises(InvalidSpec, match="--mem of sbatch is already set"):
        options_of(memory_mib=1, slurm=launch.SlurmOptions(more=("--mem=2G",)))


@pytest.mark.parametrize("text", ["0-9", "1,5,7", "0-99:10", "3", "0-9,20-29:3%2"])
def test_arrays(text: str) -> None:
    assert launch.check_array(text) == text


@pytest.mark.parametrize("text", ["", "a", "1-", "1-3%", "1-3%0", "1 2", "0-9:0", "-1"])
def test_what_is_no_array(text: str) -> None:
    with pytest.raises(InvalidSpec):
        launch.check_array(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("4", ("", 4)), ("0", ("", 0)), ("a100:4", ("a100", 4)), ("2080ti:1", ("2080ti", 1)),
     ("1g.10gb:7", ("1g.10gb", 7)), ("a100:0", None), ("a100", None), ("", None), ("-1", None)],
)  # fmt: skip
def test_gpus_with_their_type(text: str, gpus: tuple[str, int] | None) -> None:
    if gpus is not None:
        assert launch.parse_gpus(text) == gpus
        return
    with pytest.raises(InvalidSpec):
        launch.parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64G", 65536), ("64GiB", 65536), ("1t", 1 << 20), ("900", 900), ("1K", 1), ("0", 0),
     ("", None), ("64X", None), ("1.5G", None)],
)  # fmt: skip
def test_memory(text: str, mib: int | None) -> None:
    if mib is not None:
        assert launch.parse_memory(text) == mib
        return
    with pytest.raises(InvalidSpec):
        launch.parse_memory(text)


def test_variables_of_the_command() -> None:
    assert launch.parse_variables(["A=b=c d", "A=b=c d", "_x="]) == (("A", "b=c d"), ("_x", ""))
    for texts in (["A"], ["1A=b"], ["A=b", "A=c"], ["RANK=0"], ["SLURM_X=1"], ["MASTER_PORT=1"]):
        with pytest.raises(InvalidSpec):
            launch.parse_variables(texts)


# Kubernetes


def test_annotations_of_pods() -> None:
    options = launch.KubernetesOptions(
        topology="preferred:rack",
        networks=("a", "b"),
        annotations=(launch.parse_annotation("x.y/z=1=2"),),
    )
    assert pod_annotations(options) == {
        "kueue.x-k8s.io/podset-preferred-topology": "rack",
        "k8s.v1.cni.cncf.io/networks": "a,b",
        "x.y/z": "1=2",
    }
    with pytest.raises(InvalidSpec):
        launch.parse_annotation("x y=1")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", []),
        ("a=b", [("a", "In", ("b",))]),
        ("a==b, c!=d", [("a", "In", ("b",)), ("c", "NotIn", ("d",))]),
        ("a,!b", [("a", "Exists", ()), ("b", "DoesNotExist", ())]),
    ],
)
def test_label_selectors(written: str, expected: list[tuple[str, str, tuple[str, ...]]]) -> None:
    parsed = launch.parse_selector(written)
    assert [(each.key, each.operator, each.values) for each in parsed] == expected


@pytest.mark.parametrize("written", ["a=b=c", "!a=b", "a in (b)", "a,,b", "a > 3"])
def test_what_is_no_label_selector(written: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a term of a label selector"):
        launch.parse_selector(written)


def test_resources() -> None:
    assert launch.parse_resource("rdma/hca_a") == ("rdma/hca_a", 1)
    assert launch.parse_resource("nvidia.com/hostdev=8") == ("nvidia.com/hostdev", 8)
    for written in ("hca", "rdma/hca=x", "a b/c"):
        with pytest.raises(InvalidSpec, match="is not a resource"):
            launch.parse_resource(written)


@pytest.mark.parametrize(
    ("status", "restarts", "on_hang", "requeued", "exit_code"),
    [
        (79, 0, "requeue", True, 1),
        (79, 2, "requeue", False, 79),
        (79, 0, "end", False, 79),
        (1, 0, "requeue", False, 1),
        (0, 0, "requeue", False, 0),
    ],
)
def test_a_job_that_hung_is_requeued(
    status: int, restarts: int, on_hang: Any, requeued: bool, exit_code: int
) -> None:
    job = job_of(
        "sbatch", ("train.py",), requeue=2, signal_s=120, hang_after_s=600, on_hang=on_hang
    )
    script = rendered("sbatch", job)
    assert ("--on-hang=" + on_hang in script) and "--hang-after=600" in script
    # Slurm's commands; the step ends with the status of a job that hung.
    stub = f"srun() {{ return {status}; }}\nscontrol() {{ echo requeued; }}\nsleep() {{ :; }}\n"
    environ = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    completed = subprocess.run(
        ["bash", "-c", f"SLURM_CPUS_ON_NODE=1\n{stub}{script}"],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert completed.returncode == exit_code, completed.stderr
    assert ("requeued\n" in completed.stdout) == requeued


# Plain hosts


def test_the_plan_of_hosts_runs_the_same_command_on_each() -> None:
    hosts = {name: ("ssh", "-oBatchMode=yes", name) for name in ("d1", "d2")}
    job = job_of(
        "sbatch",
        ("train.py", "a b"),
        nodes=2,
        gpus=1,
        folder="/home/u/my project",
        ssh=launch.SshOptions(hosts=hosts, head=("10.0.0.1", "d1")),
    )
    script = rendered("ssh", job)
    # What ssh would give to the host's shell, as that shell splits it; and its standard input.
    stub = f"ssh() {{ printf '%s\\n' \"$2\"; cat; eval \"printf '[%s]' $3\"; echo; }}\n{script}"
    completed = subprocess.run(["bash", "-c", stub], capture_output=True, text=True, check=True)
    common = "[-s][-m][provision_runtime][job][--detach][--id=toy]"
    rest = (
        "[--folder=/home/u/my project][--nodes=2][--ranks=1][--gpus=1][--names=d1,d2]"
        "[--head=10.0.0.1,d1][--key-stdin][--][train.py][a b]"
    )
    lines = completed.stdout.splitlines()
    assert [lines[0], lines[3]] == ["d1", "d2"]
    assert lines[1] == lines[4]
    assert re.fullmatch("[0-9a-f]{64}", lines[1])
    assert lines[1] not in script
    for number, line in enumerate((lines[2], lines[5])):
        assert line.endswith(
            f"[PYTHONNOUSERSITE=1][/shared/prefixes/toy/bin/python]{common}[--node={number}]"
            f"[--name=d{number + 1}]{rest}"
        )
