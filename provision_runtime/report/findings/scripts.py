"""Faults in batch scripts and training programs, seen without running them."""

from __future__ import annotations

from .rule import FAIL, UNKNOWN, WARN, Rule

_SLURM_USERS = "https://github.com/stas00/ml-engineering/blob/master/orchestration/slurm/users.md"

SCRIPTS = {
    "script-unreadable": Rule(
        UNKNOWN,
        "a script or program cannot be read, and was not examined",
        "name a batch script, or a program that this Python can parse",
        breaks="its faults, if it has any, go unseen",
        command="python3 -m py_compile FILE",
    ),
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
    "address-local": Rule(
        FAIL,
        "each node of a job looks for the store on itself",
        "name the job's first node, before srun",
        breaks="no node finds the others: the rendezvous times out, or each node trains alone",
        command="MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)",
        source=_SLURM_USERS,
    ),
    "address-uncertain": Rule(
        WARN,
        "the address of the store may be one that other nodes cannot reach",
        "take the name of the job's first node",
        breaks="the rendezvous waits, or each node trains alone",
        command="MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)",
        source="https://github.com/pytorch/pytorch/issues/73656",
    ),
    "gpu-variable": Rule(
        FAIL,
        "a variable of Slurm is used as a number, and is none",
        "take the number of GPUs on this node",
        breaks="the launcher ends with an error, or starts another number of processes",
        command="--nproc_per_node=$SLURM_GPUS_ON_NODE",
        source="https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
    ),
    "processes-many": Rule(
        FAIL,
        "a node starts more processes than it has GPUs",
        "start one for each GPU; with a launcher, one task for each node",
        breaks="`invalid device ordinal`, or NCCL's `Duplicate GPU detected`",
        command="#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE ...",
        source="https://github.com/NVIDIA/nccl/issues/1066",
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
    "collective-one-rank": Rule(
        FAIL,
        "a collective is called by some ranks only",
        "call it on all ranks, and leave only what follows (print, log, save) to one",
        breaks="the ranks that call it wait for the others until the timeout",
        command="dist.all_reduce(loss)\nif rank == 0: print(loss)",
        source="https://docs.pytorch.org/docs/stable/distributed.html#collective-functions",
    ),
    "checkpoint-one-rank": Rule(
        FAIL,
        "the state of a model that is spread over the ranks is gathered by some ranks only",
        "gather it on all ranks, and write the file on one",
        breaks="the ranks that call it wait for the others until the timeout",
        command="state = model.state_dict()\nif rank == 0: torch.save(state, PATH)",
        source="https://docs.pytorch.org/docs/stable/fsdp.html",
    ),
    "parameters-by-rank": Rule(
        FAIL,
        "a layer has another shape on one rank than on the others",
        "build the same model on every rank",
        breaks="DistributedDataParallel hangs, or one rank ends with an error and the others wait",
        command="TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun ...",
        source="https://github.com/pytorch/pytorch/issues/76449",
    ),
    "launch-unguarded": Rule(
        FAIL,
        "the ranks are started whenever the file is imported",
        "put the call below the guard",
        breaks="each new process imports the file, and starts ranks itself: `An attempt has been made"
        " to start a new process before the current process has finished its bootstrapping phase`",
        command='if __name__ == "__main__":',
        source="https://docs.python.org/3/library/multiprocessing.html"
        "#the-spawn-and-forkserver-start-methods",
    ),
    "launch-in-init": Rule(
        WARN,
        "the ranks are started while an object is being made",
        "start them in a function, and make the objects in each rank",
        breaks="ranks get a half-made object, or make it again and start ranks of their own",
        command='if __name__ == "__main__": mp.spawn(train, nprocs=N)',
        source="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",
    ),
    "makedirs-race": Rule(
        WARN,
        "all ranks make or remove the same folder or file at once",
        "allow that it exists, or leave it to one rank",
        breaks="FileExistsError or FileNotFoundError on all ranks but the first, now and then",
        command="os.makedirs(PATH, exist_ok=True)",
        source="https://docs.python.org/3/library/os.html#os.makedirs",
    ),
    "set-epoch-missing": Rule(
        WARN,
        "a DistributedSampler is not told which epoch it is",
        "pass it the epoch before each loop over the loader",
        breaks="the data has the same order in every epoch",
        command="sampler.set_epoch(epoch)",
        source="https://docs.pytorch.org/docs/stable/data.html"
        "#torch.utils.data.distributed.DistributedSampler",
    ),
    "port-fixed": Rule(
        WARN,
        "the program fixes the port of the store",
        "take the launcher's; set one only where there is none",
        breaks="a second job on the node ends with EADDRINUSE, or joins the first",
        command="os.environ.setdefault('MASTER_PORT', PORT)",
        source="https://github.com/pytorch/pytorch/issues/73320",
    ),
    "workers-unseeded": Rule(
        WARN,
        "a dataset draws random numbers with NumPy, and its workers are not seeded",
        "seed each worker from torch.initial_seed(), which differs by worker and epoch, and torch"
        " itself by rank",
        breaks="ranks that share a seed repeat one another's augmentation; a generator made in"
        " __init__, and any before torch 1.9, is the same in all workers",
        command="DataLoader(..., worker_init_fn=seed_worker)",
        source="https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader",
    ),
    "load-device": Rule(
        WARN,
        "every rank loads a checkpoint onto the GPU from which it was saved",
        "load it into the CPU's memory, or onto the rank's GPU",
        breaks="GPU 0 holds a copy for each rank, and may run out of memory",
        command="torch.load(PATH, map_location='cpu')",
        source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    ),
}
