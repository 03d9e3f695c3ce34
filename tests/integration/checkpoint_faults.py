"""Saves and prunes that fail at every system call, with torch: the program that test_checkpoint_faults.py runs.

One process imports torch; each case is a fork of it. Prints, as JSON, how many cases there were; a case that goes wrong ends it.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import catalog, layout, verification
from provision_runtime.checkpoint.storage import Storage
from tests import tracing

BIG = 300_000
NEXT = 99
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ESTALE, errno.EINTR)
# Python calls again what was interrupted (PEP 475), so an interruption that lasts is a call that never ends.
LASTING = tuple(error for error in ERRORS if error != errno.EINTR)
# What a full disk or quota refuses; taking away still works.
GROWING = frozenset(
    (
        "create",
        "mkdir",
        "write",
        "writev",
        "pwrite64",
        "pwritev",
        "fallocate",
        "ftruncate",
        "fsync",
        "link",
    )
)


def state(tag: int) -> dict[str, Any]:
    """Tensors in files of their own, of which one is in every state, tensors in a pack, and an object."""
    tensors = {"changes": torch.full((BIG,), float(tag)), "stays": torch.arange(BIG)}
    return {
        **tensors,
        "small": {"changes": torch.full((7,), tag), "stays": torch.ones(5)},
        "tag": tag,
    }


def loaded(root: Path, step: int | str) -> int:
    """The tag of the state that is there, all of which must be of that tag."""
    loaded_state = state(-1)
    loaded_state["stays"].zero_()
    checkpoint.load(loaded_state, root, step=step)
    tag: int = loaded_state["tag"]
    assert torch.equal(loaded_state["changes"], torch.full((BIG,), float(tag))), "mixed"
    assert (
        torch.equal(loaded_state["stays"], torch.arange(BIG))
        and loaded_state["small"]["changes"].tolist() == [tag] * 7
    ), "mixed"
    return tag


@dataclass(frozen=True)
class Seen:
    """What a reader finds: the tag under `latest`, and under each step."""

    latest: int | None
    steps: dict[int, int]


def read_state(root: Path) -> Seen:
    storage = Storage(root)
    for name in catalog.committed(storage):
        assert verification.check_folder(storage, str(name))[1] == [], f"{name} is not whole"
    steps = {step: loaded(root, step) for step in checkpoint.list_steps(root)}
    return Seen(loaded(root, "latest") if steps else None, steps)


@dataclass(frozen=True)
class Scene:
    """before: the steps (with their tags) that are saved first; act: what is outcome."""

    before: tuple[tuple[int, int], ...]
    act: Callable[[Path], object]


def saving(step: int, tag: int) -> Callable[[Path], object]:
    return lambda root: checkpoint.save(state(tag), root, step=step)


SCENES = {
    "first": Scene((), saving(1, 10)),
    "overwrite": Scene(((1, 10),), saving(1, 11)),
    "incremental": Scene(((1, 10),), saving(2, 20)),
    "back": Scene(((10, 10), (30, 30)), saving(20, 20)),
    "prune": Scene(((1, 10), (2, 20), (3, 30)), lambda root: checkpoint.prune(root, keep=1)),
}


class Stage:
    """A scene's root as it is before, to be copied for each case; what is seen before and after it."""

    def __init__(self, place: Path, scene: Scene) -> None:
        self.root = place / "root"
        self._act = scene.act
        self._before = place / "before"
        self._said = place / "said.json"
        for step, tag in scene.before:
            checkpoint.save(state(tag), self._before, step=step)
        self.old = read_state(self._before)
        traced, outcome = self.play(None)
        assert traced.status == 0 and outcome is None, outcome
        self.new = read_state(self.root)
        assert self.old != self.new

    def play(
        self, fault: tracing.Fault | None, *, reading: bool = False
    ) -> tuple[tracing.Traced, dict[str, Any] | None]:
        """Once more from the beginning; what the act raised."""
        shutil.rmtree(self.root, ignore_errors=True)
        self._said.unlink(missing_ok=True)
        if self._before.exists():
            shutil.copytree(self._before, self.root)
        traced = tracing.run(self._perform, str(self.root), fault, reading=reading)
        return traced, json.loads(self._said.read_text()) if self._said.exists() else None

    def _perform(self) -> None:
        try:
            self._act(self.root)
        except (checkpoint.CheckpointError, OSError) as error:
            number = getattr(error, "errno", None)
            self._said.write_text(
                json.dumps({"type": type(error).__name__, "errno": number, "text": str(error)})
            )

    def is_between(self, visible: Seen) -> bool:
        """Each step is as before or as after; so is `latest`."""
        steps = {*self.old.steps, *self.new.steps, *visible.steps}
        sides = [(self.old.steps.get(step), self.new.steps.get(step)) for step in steps]
        return visible.latest in (self.old.latest, self.new.latest) and all(
            visible.steps.get(step) in side for step, side in zip(steps, sides)
        )

    def temporaries(self) -> list[str]:
        return (
            [
                path.name
                for path in self.root.iterdir()
                if layout.parse(path.name) is None and path.name not in ("copies", "latest")
            ]
            if self.root.exists()
            else []
        )

    def goes_on(self) -> None:
        """The next save does what it always does, and leaves nothing of the one that was outcome."""
        checkpoint.save(state(NEXT), self.root, step=NEXT)
        assert self.temporaries() == [], self.temporaries()
        assert read_state(self.root).latest == NEXT


def kills(stage: Stage, step: int) -> int:
    """SIGKILL before the N-th call, for every `step`-th N; the number of calls."""
    at = 1
    while True:
        traced, _ = stage.play(tracing.Fault(at))
        if not traced.is_reached:
            assert traced.status == 0
            return at - 1
        assert traced.was_killed and len(traced.calls) >= at, traced
        state_found = read_state(stage.root)
        assert stage.is_between(state_found), f"killed before {traced.calls[-1]}: {state_found}"
        stage.goes_on()
        at += step


def failures(stage: Stage, errors: Callable[[int], Iterator[int]]) -> int:
    """An error instead of the N-th call, also of one that only reads, for every N."""
    at, cases = 0, 0
    while True:
        at += 1
        for number in errors(at):
            traced, outcome = stage.play(tracing.Fault(at, number), reading=True)
            if not traced.is_reached:
                return cases
            cases += 1
            _judge(
                stage,
                outcome,
                number,
                f"{errno.errorcode[number]} at call {at}, {traced.calls[at - 1]}",
            )


def lasting_failures(stage: Stage, errors: tuple[int, ...]) -> int:
    """From the N-th call on nothing that takes space succeeds."""
    cases = 0
    for number in errors:
        at = 1
        while True:
            traced, outcome = stage.play(tracing.Fault(at, number, lasting=True, calls=GROWING))
            if not traced.is_reached:
                break
            _judge(
                stage,
                outcome,
                number,
                f"{errno.errorcode[number]} from call {at} on, {traced.calls[at - 1]}",
            )
            at, cases = at + 1, cases + 1
    return cases


def short_writes(stage: Stage) -> int:
    """The N-th write takes only half."""
    at = 1
    while True:
        traced, outcome = stage.play(
            tracing.Fault(at, tracing.HALF, calls=frozenset(tracing.WRITES))
        )
        if not traced.is_reached:
            return at - 1
        assert outcome is None, (outcome, traced)
        assert read_state(stage.root) == stage.new
        at += 1


def _judge(stage: Stage, outcome: dict[str, Any] | None, number: int, what: str) -> None:
    state_found = read_state(stage.root)
    if outcome is None:
        assert state_found == stage.new, f"{what}: nothing was raised, but found is {state_found}"
    else:
        assert outcome["type"] == "NotCommitted" and outcome["errno"] == number, (
            f"{what}: {outcome}"
        )
        assert state_found == stage.old, f"{what}: {outcome}, but found is {state_found}"
        # Of what could not be removed after the commit, the next save rids us.
        assert stage.temporaries() == [], f"{what}: {outcome} {stage.temporaries()}"
    stage.goes_on()


def main(place: Path, mode: str, *scenes: str) -> dict[str, int]:
    """scenes: those to play, else all."""
    torch.set_num_threads(1)  # OpenMP's threads do not come along into a fork
    stages = {}
    for name, scene in SCENES.items():
        if scenes and name not in scenes:
            continue
        (place / name).mkdir()
        stages[name] = Stage(place / name, scene)
    if mode.endswith("kills"):
        step = 1 if mode == "all-kills" else 3
        return {name: kills(stage, step) for name, stage in stages.items()}
    every = mode == "all-failures"
    saves = {
        name: stage
        for name, stage in stages.items()
        if name != "prune" and (every or name != "back")
    }
    item = {
        name: failures(stage, lambda at: iter(ERRORS if every else [ERRORS[at % len(ERRORS)]]))
        for name, stage in saves.items()
    }
    some = saves if every else {name: stage for name, stage in saves.items() if name == "overwrite"}
    lasting = {
        f"lasting {name}": lasting_failures(stage, LASTING if every else LASTING[:1])
        for name, stage in some.items()
    }
    return {
        **item,
        **lasting,
        **{f"short {name}": short_writes(stage) for name, stage in some.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:])))
