"""Jobs that `provision launch` submits to a real Slurm of four nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import Home
from tests.integration.launches import plain_prefix, toy_lab
from tests.integration.slurm_cluster import IDLE, SlurmCluster
from tests.integration.waiting import eventually
from tests.programs import write_program

__all__ = ["plain_prefix"]

pytestmark = pytest.mark.slurm


@pytest.fixture
def lab(tmp_path: Path, slurm_cluster: SlurmCluster) -> Home:
    """A user of the cluster, with an environment `toy` in the envs folder."""
    return toy_lab(tmp_path, slurm_cluster.environment)


def launched(lab: Home, *words: str) -> str:
    """The job that `provision launch toy --on slurm:gpu ...` submitted."""
    result = lab.run("launch", "toy", *words)
    assert result.returncode == 0, result.stderr
    first_line = result.stdout.splitlines()[0]
    assert first_line.startswith("submitted: job "), result.stdout
    return first_line.split()[-1]


def log_of(lab: Home, job: str) -> str:
    result = lab.run("jobs", "log", job)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_command_runs_once_on_each_node(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    text = 'echo "$NODE_RANK $SLURMD_NODENAME $MASTER_ADDR $CUDA_VISIBLE_DEVICES $(nproc)"'
    words = ("--on", "slurm:gpu", "--nodes", "4", "--gpus", "2", "--prefix", str(plain_prefix))
    job = launched(lab, *words, "--", "sh", "-c", text)
    slurm_cluster.wait_for_job(job)
    log = log_of(lab, job)
    lines = sorted(line.split() for line in log.splitlines() if line[0].isdigit())
    address = slurm_cluster["n1"].address
    assert [line[:4] for line in lines] == [
        [str(number), f"n{number + 1}", address, "0,1"] for number in range(4)
    ]
    assert "4 nodes compared: alike" in log


def test_an_array_of_which_a_task_fails_and_a_job_after_it(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    words = ("--on", "slurm:gpu", "--prefix", str(plain_prefix), "--log-dir", "logs 50%")
    text = "echo task $SLURM_ARRAY_TASK_ID $A; exit $SLURM_ARRAY_TASK_ID"
    array = launched(lab, *words, "--array", "0-1", "--env", "A=b c", "--", "sh", "-c", text)
    after = launched(lab, *words, "--after", f"{array}_1", "--", "true")
    for task, code in enumerate((0, 1)):
        followed = lab.run("jobs", "log", "-f", f"{array}_{task}")
        assert followed.returncode == code, followed.stderr
        assert f"task {task} b c\n" in followed.stdout
    log = log_of(lab, array)
    assert log.index("task 0 b c") < log.index("task 1 b c")
    slurm_cluster.wait_for_job(after, "CANCELLED")


def test_a_node_that_differs_ends_the_job_by_name(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path, tmp_path: Path
) -> None:
    prolog = slurm_cluster.folder / "prolog"
    write_program(prolog, '#!/bin/sh\n[ "$SLURMD_NODENAME" != n3 ] || echo export NCCL_ALGO=Ring\n')
    slurm_cluster.set_options(f"TaskProlog={prolog}")
    try:
        words = ("--on", "slurm:gpu", "--nodes", "4", "--prefix", str(plain_prefix))
        job = launched(lab, *words, "--", "echo", "ran")
        slurm_cluster.wait_for_job(job, "FAILED")
    finally:
        slurm_cluster.set_options()
    log = log_of(lab, job)
    assert "NCCL_ALGO: Ring on n3, not set on the other 3; the job ends here" in log
    assert "ran" not in log.splitlines()


@pytest.mark.exhaustive
def test_nodes_that_on_leaves_out_are_excluded(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    words = ("--on", "slurm:gpu!n[1-2]", "--nodes", "2", "--prefix", str(plain_prefix))
    job = launched(lab, *words, "--", "sh", "-c", "echo on $SLURMD_NODENAME")
    slurm_cluster.wait_for_job(job)
    lines = [line for line in log_of(lab, job).splitlines() if line.startswith("on ")]
    assert sorted(lines) == ["on n3", "on n4"]


@pytest.mark.exhaustive
def test_a_job_that_is_launched_within_another_is_no_part_of_it(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    """The variables of that job would say what the steps of this one request."""
    provision = str(Path(sys.executable).parent / "provision")
    outer = ("salloc", "--quiet", "--nodes=2", "--cpus-per-task=2", "--gpus-per-node=1")
    words = ("launch", "toy", "--on", "slurm:gpu", "--gpus", "0", "--prefix", str(plain_prefix))
    result = subprocess.run(
        [*outer, provision, *words, "--", "sh", "-c", "echo cores $(nproc) of $SLURM_JOB_ID"],
        cwd=lab.root / "work",
        env=lab.env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    job = result.stdout.splitlines()[0].split()[-1]
    slurm_cluster.wait_for_job(job)
    assert f"of {job}\n" in log_of(lab, job)


@pytest.mark.exhaustive
def test_a_site_that_exports_nothing_to_jobs(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    """Steps have what the script sets all the same."""
    site = Home(root=lab.root, env={**lab.env, "SBATCH_EXPORT": "NONE"})
    words = ("--on", "slurm:gpu", "--nodes", "2", "--prefix", str(plain_prefix))
    job = launched(site, *words, "--", "sh", "-c", "echo user site $PYTHONNOUSERSITE")
    slurm_cluster.wait_for_job(job)
    assert log_of(lab, job).count("user site 1\n") == 2


@pytest.mark.fuse
@pytest.mark.needs("mksquashfs", "squashfuse")
def test_a_packed_environment_is_checked_and_mounted(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "toy.sqsh"
    subprocess.run(["mksquashfs", plain_prefix, packed, "-quiet"], check=True, capture_output=True)
    words = ("--on", "slurm:gpu", "--prefix", str(packed))
    command = ("--", "sh", "-c", 'echo "in $CONDA_PREFIX"')
    job = launched(lab, *words, "--nodes", "2", *command)
    slurm_cluster.wait_for_job(job)
    places = [line for line in log_of(lab, job).splitlines() if line.startswith("in ")]
    assert len(places) == 2
    for place in places:
        assert f"provision-{job}-" in place
        assert not Path(place[3:]).exists()
    # On one node: where another node fails too, Slurm may end a step before it has read its output.
    script = tmp_path / "script"
    dry = lab.run("launch", "toy", *words, "--nodes", "1", "--dry-run", *command)
    assert dry.returncode == 0, dry.stderr
    script.write_text(dry.stdout)
    packed.write_bytes(packed.read_bytes() + b"x")
    job = slurm_cluster.run("sbatch", "--parsable", str(script)).strip()
    slurm_cluster.wait_for_job(job, "FAILED")
    assert f"{packed} is not the file that was launched" in log_of(lab, job)


def restart_now(slurm_cluster: SlurmCluster, job: str) -> None:
    """Slurm starts a requeued job only two minutes later (BeginTime): not to wait for that.

    Not at once either: credentials of the second in which the first run ended count as revoked.
    """
    slurm_cluster.wait_for_job(job, "PENDING")
    slurm_cluster.wait_for_states(IDLE)
    slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")


# Saves on USR1; after a restart it is done.
SAVING = """
import os, signal, sys, time
def save(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    print("saved", flush=True)
    sys.exit(int(sys.argv[1]))
if "SLURM_RESTART_COUNT" in os.environ:
    print("went on", flush=True)
    sys.exit()
signal.signal(signal.SIGUSR1, save)
print("running", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("limits", "status", "state", "messages"),
    [
        (("--requeue", "2"), 0, "COMPLETED", ("requeued, restart 1 of 2", "went on")),
        (("--requeue", "2"), 7, "FAILED", ("instead of saving",)),
        (("--set", "signal=60"), 0, "FAILED", ("saved before the time limit; not requeued",)),
    ],
)
def test_usr1_reaches_every_node_and_decides_about_the_restart(
    lab: Home,
    slurm_cluster: SlurmCluster,
    plain_prefix: Path,
    limits: tuple[str, ...],
    status: int,
    state: str,
    messages: tuple[str, ...],
) -> None:
    (lab.root / "work" / "saving").write_text(SAVING)
    words = ("--on", "slurm:gpu", "--nodes", "2", "--time", "30m", "--set", "job_name=saving")
    job = launched(
        lab, *words, "--prefix", str(plain_prefix), *limits, "--", "python", "saving", str(status)
    )
    log = lab.root / "work" / f"saving-{job}.log"
    eventually(lambda: log.exists() and log.read_text().count("running\n") == 2)
    # As Slurm itself does with --signal=B:USR1@120.
    slurm_cluster.run("scancel", "--signal=USR1", "--batch", job)
    if "went on" in messages:
        restart_now(slurm_cluster, job)
    slurm_cluster.wait_for_job(job, state)
    text = log.read_text()
    assert text.count("saved\n") >= 1
    for message in messages:
        assert message in text
    if status == 0:
        assert text.count("saved\n") == 2


def test_a_preempted_job_saves_and_goes_on(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    """PreemptMode=REQUEUE with a grace time: a job of a partition with a higher tier takes the nodes."""
    (lab.root / "work" / "saving").write_text(SAVING)
    words = ("--on", "slurm:gpu", "--nodes", "4", "--time", "30m", "--set", "job_name=saving")
    program = ("--prefix", str(plain_prefix), "--requeue", "2", "--", "python", "saving", "0")
    job = launched(lab, *words, *program)
    log = lab.root / "work" / f"saving-{job}.log"
    eventually(lambda: log.exists() and log.read_text().count("running\n") == 4)
    urgent = slurm_cluster.run(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--nodes=4",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    ).strip()
    slurm_cluster.wait_for_job(urgent)
    restart_now(slurm_cluster, job)
    slurm_cluster.wait_for_job(job)
    text = log.read_text()
    assert text.count("saved\n") == 4
    assert "provision: requeued, restart 1 of 2" in text
    assert text.count("went on\n") == 4


@pytest.mark.torch
@pytest.mark.exhaustive
def test_usr1_saves_and_the_requeued_job_goes_on(
    lab: Home, slurm_cluster: SlurmCluster, runtime_python: Path
) -> None:
    """With examples/train.py; the first run would take for ever, the next one ends soon."""
    (lab.root / "work" / "train.py").write_text(
        "import os, runpy, sys\n"
        "from provision_runtime import checkpoint\n"
        "latest = checkpoint.latest('checkpoints') or 10**6\n"
        "sys.argv[1:] = ['--save-every', '20', '--steps', str(latest + 30)]\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'train.py')!r}, run_name='__main__')\n"
    )
    prefix = str(runtime_python.parent.parent)
    job = launched(
        lab,
        *("--on", "slurm:gpu", "--nodes", "2", "--gpus", "1", "--time", "30m", "--requeue", "2"),
        *("--prefix", prefix, "--", "train.py"),
    )
    log = lab.root / "work" / f"train-{job}.log"
    eventually(lambda: log.exists() and "step 20: " in log.read_text())
    # As Slurm itself does with --signal=B:USR1@120.
    slurm_cluster.run("scancel", "--signal=USR1", "--batch", job)
    restart_now(slurm_cluster, job)
    slurm_cluster.wait_for_job(job)
    text = log.read_text()
    before, _, after = text.partition("provision: requeued, restart 1 of 2")
    saved = [line for line in before.splitlines() if line.startswith("step ")][-1]
    step = int(saved.split()[1].rstrip(":"))
    assert "stopped by a signal; the next run goes on here" in before
    assert f"loaded step {step}\n" in after
    assert f"step {step + 30}: loss " in after


def test_held_jobs_are_explained_and_canceled(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path
) -> None:
    words = ("--on", "slurm:gpu", "--prefix", str(plain_prefix), "--set", "job_name=waiting")
    job = launched(lab, *words, "--set=sbatch=--hold", "--", "sleep", "600")
    slurm_cluster.run("sbatch", "--wrap=true", "--hold", "--output=/dev/null")  # not ours
    result = lab.run("jobs", "list")
    assert result.returncode == 0, result.stderr
    assert [line.split()[:3] for line in result.stdout.splitlines() if "waiting" in line] == [
        [job, "waiting", "PENDING"]
    ]
    assert f"{job}: held by you: `scontrol release {job}`" in result.stdout
    missing = lab.run("jobs", "log", job)
    assert missing.returncode == 3
    assert f"Job {job} is PENDING, and there is no" in missing.stderr
    slurm_cluster.run("scontrol", "release", job)
    slurm_cluster.wait_for_job(job, "RUNNING")
    assert lab.run("jobs", "cancel", job).stdout == f"canceled: {job}\n"
    slurm_cluster.wait_for_job(job, "CANCELLED")


@pytest.mark.exhaustive
def test_a_job_that_slurm_holds_is_explained(
    lab: Home, slurm_cluster: SlurmCluster, plain_prefix: Path, tmp_path: Path
) -> None:
    """After a failing prolog Slurm requeues a job, holds it and drains the node."""
    prolog = slurm_cluster.folder / "prolog"
    write_program(prolog, "#!/bin/sh\nexit 1\n")
    slurm_cluster.set_options(f"Prolog={prolog}")
    try:
        words = ("--on", "slurm:gpu", "--prefix", str(plain_prefix), "--set", "job_name=held")
        job = launched(lab, *words, "--requeue", "1", "--", "hostname")
        slurm_cluster.wait_for_job(job, "PENDING")
        eventually(
            lambda: "prolog or its start failed" in lab.run("jobs", "list").stdout,
            explain=lambda: lab.run("jobs", "list").stdout,
        )
        shown = lab.run("jobs", "list").stdout
        assert f"`scontrol release {job}`" in shown
    finally:
        slurm_cluster.set_options()
    assert lab.run("jobs", "cancel", job).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "slurm:gpu", "--set=sbatch=--mem=900G"), "Slurm rejected the job: "),
        (("--on", "slurm:none"), "Slurm has no partition `none`"),
        (("--on", "slurm:pair", "--nodes", "3"), "--nodes 3, but --on `slurm:pair` has 2"),
        (
            ("--on", "slurm:gpu", "--gpus", "3"),
            "of the 4 nodes of --on, 0 can run it (n[1-4]: 2 x GPU)",
        ),
    ],
)
def test_what_cannot_run_is_named_and_nothing_is_submitted(
    lab: Home, slurm_cluster: SlurmCluster, words: tuple[str, ...], message: str
) -> None:
    before = slurm_cluster.run("squeue", "--noheader")
    result = lab.run("launch", "toy", *words, "--", "hostname")
    assert (result.returncode, result.stdout) == (3, "")
    assert message in " ".join(result.stderr.split())
    assert slurm_cluster.run("squeue", "--noheader") == before


def test_unknown_jobs_and_missing_commands(lab: Home, tmp_path: Path) -> None:
    for verb in ("log", "cancel"):
        result = lab.run("jobs", verb, "999999")
        assert result.returncode == 3
        assert "Slurm has no job 999999" in result.stderr
    without = lab.run("jobs", "list", PATH=str(tmp_path))
    assert without.returncode == 9
    assert "neither `squeue` nor `kubectl`" in without.stderr


@pytest.mark.exhaustive
def test_a_login_node_without_the_clusters_settings(lab: Home) -> None:
    """Slurm's own commands look for them for a minute, which is also how long we wait."""
    result = lab.run("jobs", "list", SLURM_CONF="/nonexistent/slurm.conf")
    assert result.returncode == 8, result.stderr


HANGS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("a bad batch")
    print("one waits", flush=True)
    while not os.path.exists("never"):
        time.sleep(1)
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.exhaustive
@pytest.mark.torch
def test_a_job_that_hangs_is_explained_and_requeued(
    lab: Home, slurm_cluster: SlurmCluster, runtime_python: Path
) -> None:
    (lab.root / "work" / "train.py").write_text(HANGS)
    prefix = ("--prefix", str(runtime_python.parent.parent), "--set", "ranks=1")
    words = ("--on", "slurm:gpu", "--nodes", "2", "--gpus", "0", "--time", "30m", *prefix)
    hang = ("--hang-after", "60s", "--on-hang", "requeue", "--requeue", "1")
    job = launched(lab, *words, *hang, "--", "train.py", "hang")
    log = lab.root / "work" / f"train-{job}.log"
    eventually(lambda: log.exists() and "one waits" in log.read_text())
    page = lab.run("why", job)
    assert page.returncode == 1, page.stdout + page.stderr
    assert "rank 1 " in page.stdout and "train.py:11" in page.stdout, page.stdout + page.stderr
    eventually(lambda: "requeued, restart 1 of 1" in log.read_text())
    assert "no rank has done anything for 60 s:" in log.read_text()
    slurm_cluster.run("scancel", job)
    job = launched(lab, *words, "--", "train.py", "raise")
    slurm_cluster.wait_for_job(job, "FAILED")
    lines = (lab.root / "work" / f"train-{job}.log").read_text().splitlines()
    [line] = [line for line in lines if "failed first" in line]
    assert line.startswith("provision: rank 1 on n2 failed first")
    assert line.endswith("ValueError: a bad batch, train.py:8; 1 other ended because of it")
