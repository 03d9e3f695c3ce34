"""Which rank the environment says this process is."""

from __future__ import annotations

import pytest

from provision_runtime.smoke import options, rank_env

RANK_ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def test_no_rank_variable_means_no_launcher() -> None:
    assert rank_env.from_environment({"MASTER_ADDR": "node1"}) is None


def test_slurm_rank_environment() -> None:
    env = rank_env.from_environment(RANK_ENVIRONMENT)
    assert env is not None
    assert (env.rank, env.world_size, env.master_port) == (1, 4, 29500)
    assert (env.all_local, env.launched, env.store_is_hosted) == (False, False, False)


def test_torchrun_rank_environment() -> None:
    torchrun = {
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    env = rank_env.from_environment({**RANK_ENVIRONMENT, **torchrun})
    assert env is not None
    assert (env.all_local, env.store_is_hosted, env.attempt) == (True, True, "2")


def test_incomplete_environment_is_refused() -> None:
    with pytest.raises(
        options.UsageError, match="WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"
    ):
        rank_env.from_environment({"RANK": "0"})
    with pytest.raises(options.UsageError, match="MASTER_PORT='x'"):
        rank_env.from_environment({**RANK_ENVIRONMENT, "MASTER_PORT": "x"})


SLURM_TASK = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "n[01-03,7]",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
}


def test_a_task_of_srun_is_a_rank() -> None:
    env = rank_env.from_environment(SLURM_TASK)
    assert env is not None
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (6, 7, 0, 1)
    assert (env.master_addr, env.master_port) == ("n01", 20000 + (1234 * 16 + 2) % 10000)


def test_what_the_user_set_stays() -> None:
    env = rank_env.from_environment({**SLURM_TASK, "MASTER_ADDR": "fast0", "MASTER_PORT": "4000"})
    assert env is not None
    assert (env.master_addr, env.master_port) == ("fast0", 4000)


@pytest.mark.parametrize("tasks", ["1", ""])
def test_a_batch_script_or_a_single_task_is_no_rank(tasks: str) -> None:
    assert rank_env.from_environment({**SLURM_TASK, "SLURM_STEP_NUM_TASKS": tasks}) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[01-04,7],m2", "n01"),
        ("gpu[3,5]-ib,x", "gpu3-ib"),
        ("rack-1-[10-12]", "rack-1-10"),
    ],
)
def test_first_host_of_slurms_lists(nodes: str, first: str) -> None:
    assert rank_env.first_host(nodes) == first
