"""Why ranks of a training job end: errors that programs print, and what to do about them."""

from __future__ import annotations

from .rule import FAIL, Rule

FAILURES = {
    "gpu-memory-full": Rule(
        FAIL,
        "a rank needed more memory than its GPU has left",
        "use smaller batches, checkpoint activations or shard the model (FSDP); look whether another"
        " process holds memory of that GPU",
        breaks="the rank ends, and with it the job",
        command="nvidia-smi",
        source="https://docs.pytorch.org/docs/stable/notes/cuda.html",
    ),
    "module-absent": Rule(
        FAIL,
        "the program imports a package that the environment does not have",
        "add the package to the environment",
        breaks="the rank ends at its import",
        command="provision add NAME PACKAGE",
    ),
    "gradient-unused": Rule(
        FAIL,
        "DDP waits for gradients of parameters that the loss does not depend on",
        "use all parameters in each step, or DistributedDataParallel(find_unused_parameters=True)",
        breaks="the next forward pass ends with an error, or ranks wait for one another",
        command="TORCH_DISTRIBUTED_DEBUG=DETAIL provision run NAME -- torchrun ...",
        source="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    "device-assert": Rule(
        FAIL,
        "code on the GPU found a wrong value: mostly a label or an index out of range",
        "compare labels and token numbers with the size of the output and the embedding; the named"
        " line is later than the fault unless CUDA_LAUNCH_BLOCKING=1 is set",
        breaks="every later call of CUDA in this process fails too",
        command="CUDA_LAUNCH_BLOCKING=1 provision run NAME -- torchrun ...",
        source="https://docs.pytorch.org/docs/stable/notes/cuda.html",
    ),
    "rank-crashed": Rule(
        FAIL,
        "a rank crashed in code that is not Python",
        "look for its stack above, if PYTHONFAULTHANDLER=1 is set; two builds of one library in the"
        " environment are the usual cause",
        breaks="the rank ends without a traceback",
        command="PYTHONFAULTHANDLER=1 provision run NAME -- torchrun ...",
        source="https://docs.python.org/3/library/faulthandler.html",
    ),
    "rank-killed": Rule(
        FAIL,
        "SIGKILL ended a rank, and it was no memory limit of its group",
        "look for who did: the scheduler, a user, or the kernel, whose log says it",
        breaks="the rank ends without a message",
        command="journalctl --dmesg --since -1h | grep -i -E 'oom|killed process'",
    ),
}
