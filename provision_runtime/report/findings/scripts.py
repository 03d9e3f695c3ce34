"""Faults in batch scripts and training programs, seen without running them."""

from __future__ import annotations

from .rule import FAIL, WARN, Rule

_SLURM_USERS = "https://github.com/stas00/ml-engineering/blob/master/orchestration/slurm/users.md"

SCRIPTS = {
    "srun-cpus": Rule(
        WARN,
        "srun does not take over --cpus-per-task of the batch script",
        "say it to srun, too",
        breaks="with Slurm 22.05 and later each task may get a single core",
        command="export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        source="https://github.com/reframe-hpc/reframe/issues/2655",
    ),
    "gpus-hidden": Rule(
        WARN,
        "each task sees only its own GPU",
        "ask for GPUs by node, and leave their choice to the program",
        breaks="ranks of one host cannot use NVLink or CUDA IPC with one another",
        command="#SBATCH --gpus-per-node=N\nsrun --gpu-bind=none ...",
        source="https://github.com/NVIDIA/pyxis/issues/73",
    ),
    "rank-expanded-early": Rule(
        FAIL,
        "a variable of the task is expanded by the batch script",
        "put the command into single quotes: srun bash -c '...'",
        breaks="every node gets the value of the first: all are rank 0",
        command="srun bash -c 'torchrun --node_rank=$SLURM_PROCID ...'",
        source=_SLURM_USERS,
    ),
    "node-count-fixed": Rule(
        FAIL,
        "the number of nodes in the command differs from that of the job",
        "take it from the job",
        breaks="the rendezvous waits for nodes that never come, or leaves nodes out",
        command="--nnodes=$SLURM_NNODES",
        source=_SLURM_USERS,
    ),
    "barrier-device": Rule(
        WARN,
        "the program starts NCCL without saying which GPU a rank uses",
        "call torch.cuda.set_device(local_rank) first, or pass device_id",
        breaks="barrier() uses GPU 0 on every rank: `devices used by this process are unknown`,"
        " then a hang",
        command="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        source="https://github.com/pytorch/pytorch/pull/134617",
    ),
}
