"""Part of phase ddp: does a DataLoader with workers deliver this rank's samples unharmed?

And into pinned memory, if there is a GPU. The workers are forked, as in training code, although
this process has threads of Gloo or NCCL: the workers use neither. If a worker dies (a bus error
where /dev/shm is too small) or hangs, the loader raises an error within its time limit.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections import Counter
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from ...comm import processes
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
    finding_id = "dataloader-failed"
    try:
        problem = _loader_problem(context, workers)
    except SocketsUnusable as error:
        finding_id = "tmpdir-unusable"
        # The text of a worker's exception ends with `module.SocketsUnusable: problem`.
        problem = str(error).strip().splitlines()[-1].partition(": ")[2]
    except Exception as error:  # a worker's exception is raised here with its own type
        problem = describe_loader_error(error)
    data = {
        "workers": workers,
        "pinned": context.on_gpu,
        "seconds": round(time.monotonic() - started, 3),
    }
    failure = (finding_id, problem) if problem else None
    findings = loader_findings(context.exchange("ddp/loader", failure), workers)
    return Outcome(f"{format_count(workers, 'loader worker')} per rank", findings, data)


def loader_findings(failures: Sequence[Sequence[str] | None], workers: int) -> tuple[Finding, ...]:
    """One finding for each id, with the text of its first rank: too little memory fails at a
    different point on each rank. failures: by rank, a finding's id and the problem, or None."""
    messages: dict[str, str] = {}
    ranks: dict[str, tuple[int, ...]] = {}
    for rank, failure in enumerate(failures):
        if failure is None:
            continue
        id, problem = failure
        messages.setdefault(id, problem)
        ranks[id] = (*ranks.get(id, ()), rank)
    loader = f"a DataLoader with {format_count(workers, 'loader worker')}"
    return tuple(Finding(id, f"{loader}: {messages[id]}", ranks[id]) for id in messages)


class SocketsUnusable(OSError):
    """A worker cannot make sockets in the folder for temporary files."""


def socket_problem() -> str | None:
    """Why multiprocessing cannot make a socket in the folder for temporary files, or None.

    Call it in a worker, which removes the folder of its sockets when it ends; a rank does not.
    """
    folder = ""
    try:
        folder = f"{tempfile.gettempdir()}: "
        connection.Listener(family="AF_UNIX").close()
    except OSError as error:
        return f"{folder}{describe_error(error)}"
    return None


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
                return f"sample {int(row[0])} was damaged between a worker and the rank"
            delivered.append(int(row[0]))
    if delivered != expected:
        return (
            f"it delivered {len(delivered)} samples, but not the {len(expected)} that the sampler "
            "chose, in that order"
        )
    return None


def loader_timeout_s(remaining_s: float) -> float:
    """How long the loader waits for a batch: half of what the phase has left, so that this rank can
    still say that a worker hangs.

    Not less: on 2 cores with a load of 25, a worker's first batch took more than 30 s.
    """
    return max(1.0, remaining_s / 2)


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
        timeout=loader_timeout_s(context.remaining_s()),
        worker_init_fn=_PrepareWorker(os.getpid()),
        multiprocessing_context="fork",
    )


class _PrepareWorker:
    """Makes a worker end on a signal, and die when this rank ends, however it ends.

    A worker hands its tensors over through a socket. If it cannot make one, torch's worker only
    prints the error, and the loader waits until its time limit: so this raises it.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        processes.death_signal(signal.SIGKILL)()
        if os.getppid() != self._parent:
            os._exit(1)
        problem = socket_problem()
        if problem is not None:
            raise SocketsUnusable(problem)
