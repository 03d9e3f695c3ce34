"""DistributedSampler gives every sample to exactly one rank; only the few that fill up the last round come twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...outcome import Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...session import Session

EPOCHS = 2
SAMPLES_PER_RANK = 8
# So that the samples cannot be shared out evenly, where there is more than one rank.
ODD_SAMPLES = 1


def check(session: Session) -> Outcome:
    samples = SAMPLES_PER_RANK * session.place.world_size + ODD_SAMPLES
    by_rank = session.exchange(
        "ddp/sampler", [indices(session, samples, epoch) for epoch in range(EPOCHS)]
    )
    found = (unlike_once([said[epoch] for said in by_rank], samples) for epoch in range(EPOCHS))
    first = next((finding for finding in found if finding), None)
    data = {"samples": samples, "epochs": EPOCHS}
    return Outcome("every sample on one rank", (first,) if first else (), data)


def indices(session: Session, samples: int, epoch: int) -> list[int]:
    """This rank's, as training code gets them."""
    from torch.utils.data.distributed import DistributedSampler

    place = session.place
    sampler = DistributedSampler(
        range(samples), place.world_size, place.rank, shuffle=True, seed=session.options.seed
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def unlike_once(by_rank: Sequence[Sequence[int]], samples: int) -> Finding | None:
    """Complete, of equal length on all ranks, and disjoint but for the samples that fill up the last round."""
    each = -(-samples // len(by_rank))
    unequal = tuple(rank for rank, mine in enumerate(by_rank) if len(mine) != each)
    if unequal:
        return Finding(
            "sampler-wrong",
            f"{len(by_rank[unequal[0]])} samples instead of {each} of {samples}",
            unequal,
        )
    times = Counter(sample for mine in by_rank for sample in mine)
    missing = [sample for sample in range(samples) if sample not in times]
    if missing:
        everybody = tuple(range(len(by_rank)))
        return Finding(
            "sampler-wrong",
            f"sample {missing[0]} of {samples} came to no rank ({len(missing)} did not)",
            everybody,
        )
    strange = [sample for sample in times if not 0 <= sample < samples]
    if strange:
        return Finding(
            "sampler-wrong",
            f"sample {strange[0]} is none of {samples}",
            _holders(by_rank, strange[0]),
        )
    return None


def _holders(by_rank: Sequence[Sequence[int]], sample: int) -> tuple[int, ...]:
    return tuple(rank for rank, mine in enumerate(by_rank) if sample in mine)
