"""What Slurm's and Kubernetes' commands answer about jobs, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs

SQUEUE = """\
provision:train|41|train|RUNNING|4|12:01/4:00:00|n[1-4]
provision:train|42|train|PENDING|4|0:00/4:00:00|(JobHeldUser)
provision:train|43|train|PENDING|2|0:00/1:00:00|(launch failed requeued held)
provision:train|44|odd|PENDING
provision:train|45|train|PENDING|2|0:00/1:00:00|(ReqNodeNotAvail, UnavailableNodes:n3)
(null)|46|mine|PREEMPTED|2|9:59/1:00:00|n[1-2]
"""


def test_squeue_rows_with_what_to_do() -> None:
    """Without jobs that provision did not launch."""
    assert [(job.id, job.state, job.advice) for job in slurm_jobs.parse_jobs(SQUEUE)] == [
        ("41", "RUNNING", ""),
        ("42", "PENDING", "held by you: `scontrol release 42`"),
        ("43", "PENDING", slurm_jobs.REASONS["launch failed requeued held"].replace("ID", "43")),
        ("45", "PENDING", "nodes that it needs are down, drained or reserved"),
    ]


# The first as Slurm 22.05 prints it (a job of our own cluster); the second with the fields that
# 24.11 has instead: allocated and requested TRES, and the log's name as a pattern.
SCONTROL_2205 = (
    "JobId=7 JobName=train UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901754 Nice=0 "
    "Account=(null) QOS=(null) JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=1 "
    "Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00 TimeLimit=00:30:00 TimeMin=N/A "
    "Partition=gpu AllocNode:Sid=0.0.0.0:1 ReqNodeList=(null) ExcNodeList=(null) NodeList= "
    "BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=2 TRES=cpu=4,node=2,billing=4 "
    "Command=/tmp/job.sbatch WorkDir=/home/u/my project Comment=provision:train "
    "StdErr=/home/u/my project/train-7.log StdIn=/dev/null "
    "StdOut=/home/u/my project/train-7.log Power= TresPerNode=gres:gpu:1\n"
)
SCONTROL_2411 = (
    "JobId=7 JobName=train UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=1 Nice=0 "
    "Account=lab QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:01:00 TimeLimit=00:30:00 NodeList=n[1-2] "
    "BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqTRES=cpu=4,mem=8G,node=2,"
    "gres/gpu=2 AllocTRES=cpu=4,mem=8G,node=2,gres/gpu=2 OverSubscribe=NO LogLevel=unset "
    "Command=/home/ada/job.sbatch SubmitLine=sbatch --parsable job.sbatch WorkDir=/home/ada/p "
    "Comment=provision:train StdErr= StdIn=/dev/null StdOut=%x-%j.log\n"
)


@pytest.mark.parametrize(
    ("text", "state", "log"),
    [
        (SCONTROL_2205, "PENDING", "/home/u/my project/train-7.log"),
        (SCONTROL_2411, "RUNNING", "/home/ada/p/train-7.log"),
    ],
)
def test_scontrol_of_old_and_new_releases(text: str, state: str, log: str) -> None:
    fields = slurm_jobs.parse_job(text)
    assert (fields["JobId"], fields["JobState"], fields["Comment"]) == (
        "7",
        state,
        "provision:train",
    )
    assert slurm_jobs.log_path(fields) == Path(log)


def test_states_of_kubernetes_jobs() -> None:
    job = {"metadata": {"name": "train-1a", "namespace": "lab"}, "spec": {"completions": 4}}
    assert kubernetes_jobs.parse_job(job).state == "Pending"
    running = {**job, "status": {"active": 4}}
    assert (kubernetes_jobs.parse_job(running).state, kubernetes_jobs.parse_job(running).nodes) == (
        "Running",
        4,
    )
    queued = {**job, "spec": {"completions": 4, "suspend": True}}
    assert kubernetes_jobs.parse_job(queued).where == "waits for its queue"
    conditions = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    failed = kubernetes_jobs.parse_job({**job, "status": {"conditions": conditions}})
    assert (failed.state, failed.where) == ("Failed", "BackoffLimitExceeded")


def test_states_of_jobsets() -> None:
    """Fields as in JobSet's v1alpha2."""
    jobset = {
        "kind": "JobSet",
        "metadata": {"name": "train-1a", "namespace": "lab"},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"completions": 4}}}]},
    }
    waiting = kubernetes_jobs.parse_job(jobset)
    assert (waiting.state, waiting.nodes) == ("Pending", 4)
    running = {**jobset, "status": {"replicatedJobsStatus": [{"name": "node", "active": 1}]}}
    assert kubernetes_jobs.parse_job(running).state == "Running"
    conditions = [
        {"type": "Suspended", "status": "False", "message": "jobset is resumed"},
        {"type": "Completed", "status": "True", "message": "jobset completed successfully"},
    ]
    ended = kubernetes_jobs.parse_job({**jobset, "status": {"conditions": conditions}})
    assert (ended.state, ended.where) == ("Complete", "jobset completed successfully")


def test_why_a_pod_has_no_log_yet() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "host/toy:1"'}
    status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    assert kubernetes_jobs.waiting_reason({"status": status}) == (
        'ImagePullBackOff: Back-off pulling image "host/toy:1"'
    )
    assert kubernetes_jobs.waiting_reason({"status": {"phase": "Pending"}}) == "Pending"
    assert kubernetes_jobs.waiting_reason({"status": {"phase": "Failed"}}) == ""
