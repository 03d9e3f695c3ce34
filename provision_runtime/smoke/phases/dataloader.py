"""Part of phase ddp: does a DataLoader with workers deliver this rank's samples unharmed?

And into pinned memory, if there is a GPU. The workers are forked, as in training code, although
this process has threads of Gloo or NCCL: the workers use neither. If a worker dies (a bus error
where /dev/shm is too small) or hangs, the loader raises an error within its time limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...report.text import format_count
from ..outcome import Finding, Outcome, describe_error
from ..watchdog import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..context import RankContext

EPOCHS = 2
SAMPLES_PER_RANK = 8
# Makes the number of samples indivisible by the number of ranks, unless there is only one.
ODD_SAMPLES = 1

WORKERS = 2
WORKERS_QUICK = 1
BATCH = 4
# 64 KiB per sample: the batches in flight overflow a /dev/shm that is much too small, and fit into
# any other.
NUMBERS = 16 << 10
LIMIT_S = 30.0
PR_SET_PDEATHSIG = 1
# Process numbers differ between ranks that have the same problem.
PIDS = re.compile(r" ?\(pid(\(s\))? [\d, ]+\)")


def check_sampler(context: RankContext) -> Outcome:
    """Checks that DistributedSampler gives every sample to exactly one rank, except for the few
    that fill up the last round."""
    samples = SAMPLES_PER_RANK * context.env.world_size + ODD_SAMPLES
    own_epochs = [sampler_indices(context, samples, epoch) for epoch in range(EPOCHS)]
    epochs_by_rank = context.exchange("ddp/sampler", own_epochs)
    data = {"samples": samples, "epochs": EPOCHS}
    for epoch in range(EPOCHS):
        finding = sampler_finding([epochs[epoch] for epochs in epochs_by_rank], samples)
        if finding is not None:
            return Outcome("every sample on one rank", (finding,), data)
    return Outcome("every sample on one rank", (), data)


def sampler_indices(context: RankContext, samples: int, epoch: int) -> list[int]:
    """This rank's samples, as training code gets them."""
    from torch.utils.data.distributed import DistributedSampler

    env = context.env
    sampler = DistributedSampler(
        range(samples), env.world_size, env.rank, shuffle=True, seed=context.options.seed
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def sampler_finding(indices_by_rank: Sequence[Sequence[int]], samples: int) -> Finding | None:
    """Checks that all samples exist and are assigned, and that every rank gets the same number."""
    ranks = range(len(indices_by_rank))
    expected = -(-samples // len(indices_by_rank))
    unequal = tuple(rank for rank in ranks if len(indices_by_rank[rank]) != expected)
    if unequal:
        count = len(indices_by_rank[unequal[0]])
        message = f"{count} samples of {samples}, but every rank must get {expected}"
        return Finding("sampler-wrong", message, unequal)
    counts = Counter(sample for indices in indices_by_rank for sample in indices)
    missing = [sample for sample in range(samples) if sample not in counts]
    if missing:
        message = f"no rank got sample {missing[0]} of {samples} ({len(missing)} are missing)"
        return Finding("sampler-wrong", message, tuple(ranks))
    for sample in counts:
        if not 0 <= sample < samples:
            holders = tuple(rank for rank in ranks if sample in indices_by_rank[rank])
            message = f"sample {sample} does not exist: there are {samples}"
            return Finding("sampler-wrong", message, holders)
    return None


class Samples:
    """A map-style dataset whose samples can be predicted."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        import torch

        return torch.full((NUMBERS,), float(index))


def check_loader(context: RankContext) -> Outcome:
    """Uses no collectives, so a rank that fails does not keep the others waiting; the results are
    exchanged afterwards."""
    workers = WORKERS_QUICK if context.options.quick else WORKERS
    started = time.monotonic()
    try:
        problem = _loader_problem(context, workers)
    except Exception as error:  # a worker's exception is raised here with its own type
        problem = describe_loader_error(error)
    data = {
        "workers": workers,
        "pinned": context.on_gpu,
        "seconds": round(time.monotonic() - started, 3),
    }
    finding = loader_finding(context.exchange("ddp/loader", problem), workers)
    message = f"{format_count(workers, 'loader worker')} per rank"
    return Outcome(message, (finding,) if finding else (), data)


def loader_finding(problems: Sequence[str | None], workers: int) -> Finding | None:
    """One finding, with the text of the first rank: too little memory fails at a different place on
    each rank."""
    failed = tuple(rank for rank, problem in enumerate(problems) if problem)
    if not failed:
        return None
    message = f"a DataLoader with {format_count(workers, 'loader worker')}: {problems[failed[0]]}"
    return Finding("dataloader-failed", message, failed)


def describe_loader_error(error: Exception) -> str:
    """What happened, without the traceback of a worker and the number of its process."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and "DataLoader worker process" in lines[0]:
        return f"{lines[-1]} (in a worker)"
    return PIDS.sub("", describe_error(error))


def _loader_problem(context: RankContext, workers: int) -> str | None:
    """What is wrong with the delivered samples, or None."""
    samples = SAMPLES_PER_RANK * context.env.world_size
    expected = sampler_indices(context, samples, 0)
    delivered: list[int] = []
    for batch in _loader(context, samples, workers):
        if context.on_gpu and not batch.is_pinned():
            return "a batch is not in pinned memory"
        for row in batch:
            if not bool((row == row[0]).all()):
                return f"sample {int(row[0])} was damaged on the way from a worker"
            delivered.append(int(row[0]))
    if delivered != expected:
        return (
            f"it delivered {len(delivered)} samples, but not the {len(expected)} that the sampler "
            "chose, in that order"
        )
    return None


def _loader(context: RankContext, samples: int, workers: int) -> Any:
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    env = context.env
    dataset: Any = Samples(samples)
    sampler: Any = DistributedSampler(
        dataset, env.world_size, env.rank, shuffle=True, seed=context.options.seed
    )
    return DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=workers,
        pin_memory=context.on_gpu,
        timeout=max(1.0, min(LIMIT_S, context.remaining_s() / 2)),
        worker_init_fn=_BindToParent(os.getpid()),
        multiprocessing_context="fork",
    )


class _BindToParent:
    """Makes a worker end on a signal, and die when this rank ends, however it ends."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:
            os._exit(1)
