"""Part of phase ddp: does a DataLoader with workers deliver every sample of its rank, and unharmed?

And into pinned memory, if there is a GPU. The workers are forked, as in training code, although
this process has threads of Gloo or NCCL: the workers use neither. If a worker dies (a bus error
where /dev/shm is too small) or hangs, the loader raises an error within its time limit.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import tempfile
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from ...comm import processes
from ...report.text import format_count
from ..outcome import Finding, Outcome, describe_error, merge_equal
from ..watchdog import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..context import RankContext

SAMPLES_PER_RANK = 8

WORKERS = 2
WORKERS_QUICK = 1
BATCH = 4
# 64 KiB per sample: the batches in flight overflow a /dev/shm that is much too small, and fit into
# any other.
NUMBERS = 16 << 10
# Process numbers differ between ranks that have the same problem.
PIDS = re.compile(r" ?\(pid(\(s\))? [\d, ]+\)")


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
    failure: tuple[str, str] | None = None
    try:
        _load(context, workers)
    except SocketsUnusable as error:
        # The text of a worker's exception ends with `module.SocketsUnusable: problem`.
        failure = ("tmpdir-unusable", str(error).strip().splitlines()[-1].partition(": ")[2])
    except Exception as error:  # a worker's exception is raised here with its own type
        failure = ("dataloader-failed", describe_loader_error(error))
    data = {
        "workers": workers,
        "pinned": context.on_gpu,
        "seconds": round(time.monotonic() - started, 3),
    }
    findings = loader_findings(context.exchange("ddp/loader", failure), workers)
    return Outcome(f"{format_count(workers, 'loader worker')} per rank", findings, data)


def loader_findings(
    failures: Sequence[tuple[str, str] | None], workers: int
) -> tuple[Finding, ...]:
    """One finding for each id. failures: by rank, a finding's id and the problem, or None."""
    loader = f"a DataLoader with {format_count(workers, 'loader worker')}"
    findings = []
    for rank, failure in enumerate(failures):
        if failure is not None:
            finding_id, problem = failure
            findings.append(Finding(finding_id, f"{loader}: {problem}", (rank,)))
    return merge_equal(findings, by_id=True)


class SampleDamaged(Exception):
    """The loader delivered something else than its dataset holds."""


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


def loader_timeout_s(remaining_s: float) -> float:
    """How long the loader waits for a batch: half of what the phase has left, so that this rank can
    still say that a worker hangs.

    Not less: on 2 cores with a load of 25, a worker's first batch took more than 30 s.
    """
    return max(1.0, remaining_s / 2)


def _load(context: RankContext, workers: int) -> None:
    """Reads this rank's samples as training code does. Raises SampleDamaged."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    env = context.env
    dataset: Any = Samples(SAMPLES_PER_RANK * env.world_size)
    sampler: Any = DistributedSampler(dataset, env.world_size, env.rank, shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=workers,
        pin_memory=context.on_gpu,
        timeout=loader_timeout_s(context.remaining_s()),
        worker_init_fn=functools.partial(_prepare_worker, os.getpid()),
        multiprocessing_context="fork",
    )
    delivered: list[int] = []
    for batch in loader:
        if context.on_gpu and not batch.is_pinned():
            raise SampleDamaged("a batch is not in pinned memory")
        for row in batch:
            if not bool((row == row[0]).all()):
                raise SampleDamaged(f"sample {int(row[0])} has other values than its worker made")
            delivered.append(int(row[0]))
    if delivered != list(sampler):
        raise SampleDamaged("the samples are not in the order of the sampler")


def _prepare_worker(parent: int, _: int) -> None:
    """Makes a worker end on a signal, and die when this rank ends, however it ends.

    A worker hands its tensors over through a socket. If it cannot make one, torch's worker only
    prints the error, and the loader waits until its time limit: so this raises it.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    processes.death_signal(signal.SIGKILL)()
    if os.getppid() != parent:
        os._exit(1)
    problem = socket_problem()
    if problem is not None:
        raise SocketsUnusable(problem)
