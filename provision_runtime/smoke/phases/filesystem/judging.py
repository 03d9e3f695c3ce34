"""What all ranks said about the target folder, as findings. Pure: every rank comes to the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....fs import mounts
from ....report import model
from ... import folder, timing
from ...outcome import Finding, Outcome
from . import locking
from .seeing import crew

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Answers = Sequence[dict[str, Any]]

# Less than this is not worth a training job's while: its first checkpoint or its logs would fill it.
LOW_BYTES = 1 << 30
LOW_INODES = 1000


def judge(target: str, answers: Answers) -> Outcome:
    found = [
        *_problems(answers),
        *_unshared(target, answers),
        *_torn(target, answers),
        *_races(target, answers),
    ]
    found += [*_locks(target, answers), *_slow(target, answers), *_low(target, answers)]
    broken = any(finding.id in folder.FATAL for finding in found)
    data = _data(target, answers)
    return Outcome(message=_in_words(target, data), findings=tuple(found), data=data, broken=broken)


def _problems(answers: Answers) -> Iterator[Finding]:
    """What ranks were told by the system. One finding for each kind: a full disk may be met at another step by each rank."""
    said: dict[str, tuple[str, list[int]]] = {}
    for rank, answer in enumerate(answers):
        for name, message in answer["problems"]:
            said.setdefault(name, (message, []))[1].append(rank)
    yield from (Finding(name, message, tuple(ranks)) for name, (message, ranks) in said.items())


def _unshared(target: str, answers: Answers) -> Iterator[Finding]:
    """Ranks that could write, but do not see what the others wrote."""
    able = [rank for rank, answer in enumerate(answers) if not answer["problems"]]
    together = [
        rank
        for rank in crew([list(map(int, answer["seen_s"])) for answer in answers])
        if rank in able
    ]
    apart = [rank for rank in able if rank not in together]
    if not apart:
        return
    if not together:
        yield Finding(
            "folder-error",
            f"files that were just written in {target} cannot be read back",
            tuple(apart),
        )
        return
    if len(apart) == len(together) and _depth(answers[together[0]]) < _depth(answers[apart[0]]):
        together, apart = apart, together
    name = (
        "folder-unmounted"
        if _is_mount(answers[apart[0]], answers[together[0]])
        else "folder-not-shared"
    )
    here, there = _location(answers[apart[0]]), _location(answers[together[0]])
    message = f"files of the other ranks do not appear in {target}: it is {here}, but {there} on rank {together[0]}"
    yield Finding(name, message, tuple(apart))


def _is_mount(apart: dict[str, Any], together: dict[str, Any]) -> bool:
    """Within a host two devices behind one name are two mounts; between hosts a mount is missing where the name leads to a
    file system that is mounted further up."""
    if apart["host"] == together["host"]:
        return _location(apart).device != _location(together).device
    return _depth(apart) < _depth(together)


def _location(answer: dict[str, Any]) -> mounts.Location:
    return mounts.from_json(answer["location"]) if answer["location"] else mounts.Location(0, None)


def _depth(answer: dict[str, Any]) -> int:
    mount = _location(answer).mount
    return len(mount.point.rstrip("/")) if mount else 0


def _torn(target: str, answers: Answers) -> Iterator[Finding]:
    readers = {
        rank: answer["reads"]["torn"] for rank, answer in enumerate(answers) if answer.get("reads")
    }
    ranks = [rank for rank, torn in readers.items() if torn]
    if ranks:
        message = (
            f"a file in {target} was replaced by a rename, and a reader saw {readers[ranks[0]]}"
        )
        yield Finding("rename-not-atomic", message, tuple(ranks))


def _races(target: str, answers: Answers) -> Iterator[Finding]:
    ranks = [rank for rank, answer in enumerate(answers) if answer["races"]]
    if ranks:
        message = (
            f"makedirs with exist_ok failed in {target} while other ranks made the same folders"
        )
        yield Finding("makedirs-unsafe", message, tuple(ranks))


def _locks(target: str, answers: Answers) -> Iterator[Finding]:
    both = [answer["locks"] for answer in answers if answer.get("locks")]
    for kind in locking.KINDS:
        said = {turn: word for one in both for turn, word in one["said"][kind].items()}
        wrong = locking.judge(said)
        if wrong:
            ranks = tuple(sorted({both[0]["holder"], both[0]["peer"]}))
            yield Finding("locks-unsupported", f"{kind} in {target} {wrong}", ranks)


def _slow(target: str, answers: Answers) -> Iterator[Finding]:
    """Writing is this rank's own; a file that comes late is the reader's or the writer's, so only the reader is named."""
    synced = {
        rank: answer["sync_s"]
        for rank, answer in enumerate(answers)
        if answer.get("sync_s") is not None
    }
    seen = {
        rank: max(answer["seen_s"].values())
        for rank, answer in enumerate(answers)
        if answer["seen_s"]
    }
    for what, taken in (("a durable write of 64 KiB", synced), ("a new file to be seen", seen)):
        slow = [rank for rank, seconds in taken.items() if seconds > folder.SLOW_S]
        if slow:
            worst, middle = max(taken.values()), timing.median(list(taken.values()))
            message = f"{what} took {worst:.1f} s in {target} (median of all ranks {middle:.3f} s)"
            yield Finding("folder-slow", message, tuple(slow))


def _low(target: str, answers: Answers) -> Iterator[Finding]:
    for what, key, least in (
        ("bytes", "free_bytes", LOW_BYTES),
        ("inodes", "free_inodes", LOW_INODES),
    ):
        free = {
            rank: answer["space"][key] for rank, answer in enumerate(answers) if answer.get("space")
        }
        low = [rank for rank, left in free.items() if left is not None and left < least]
        if low and not any(
            name == "disk-full" for answer in answers for name, _ in answer["problems"]
        ):
            left = min(free[rank] for rank in low)
            words = f"{left / (1 << 20):.0f} MiB" if what == "bytes" else f"{left} inodes"
            yield Finding("space-low", f"{words} are left in {target}", tuple(low))


def _data(target: str, answers: Answers) -> dict[str, Any]:
    first = answers[0]
    return {
        "folder": target,
        "mounts": {
            str(rank): str(_location(answer)) for rank, answer in _first_of_each_host(answers)
        },
        "options": (first["location"] or {}).get("mount") and first["location"]["mount"]["options"],
        "visible_s": _spread(
            [seconds for answer in answers for seconds in answer["seen_s"].values()]
        ),
        "sync_s": _spread(
            [answer["sync_s"] for answer in answers if answer.get("sync_s") is not None]
        ),
        "reads": {
            str(rank): answer["reads"] for rank, answer in enumerate(answers) if answer.get("reads")
        },
        "locks": _lock_data(answers),
        "races": sum(answer["races"] for answer in answers),
        "space": first.get("space"),
        "hard_link": first.get("hard_link"),
    }


def _first_of_each_host(answers: Answers) -> list[tuple[int, dict[str, Any]]]:
    hosts = [answer["host"] for answer in answers]
    return [
        (rank, answer) for rank, answer in enumerate(answers) if hosts.index(answer["host"]) == rank
    ]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return {"median": timing.median(values), "max": max(values)} if values else None


def _lock_data(answers: Answers) -> dict[str, str] | None:
    """None: one rank alone has nobody to keep out."""
    both = [answer["locks"] for answer in answers if answer.get("locks")]
    if not both:
        return None
    merged = {
        kind: {turn: word for one in both for turn, word in one["said"][kind].items()}
        for kind in locking.KINDS
    }
    return {kind: locking.judge(said) or model.PASS for kind, said in merged.items()}


def _in_words(target: str, data: dict[str, Any]) -> str:
    seen, synced, space = data["visible_s"], data["sync_s"], data["space"]
    told = [f"a new file is seen within {seen['max']:.2f} s" if seen else ""]
    told += [f"a durable write takes {synced['max']:.3f} s" if synced else ""]
    told += [
        f"{space['free_bytes'] / (1 << 30):.0f} GiB free"
        if space and space["free_bytes"] is not None
        else ""
    ]
    return f"{', '.join(text for text in told if text)} in {target}"
