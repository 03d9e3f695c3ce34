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


def test_rank_environment_of_a_batch_script() -> None:
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
