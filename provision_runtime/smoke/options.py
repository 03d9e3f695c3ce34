"""The options of a smoke test, and the faults that can be injected: options.json has their rows."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, NoReturn

from ..dataclass import frozen
from ..report.codec import packaged_json

PHASES = (
    "facts",
    "rendezvous",
    "barrier",
    "collectives",
    "compute",
    "ddp",
    "filesystem",
    "checkpoint",
)
# No other phase can run without these.
REQUIRED_PHASES = ("facts", "rendezvous")
# Each kind of fault: the values that follow it, and for those without a phase the phases that detect
# it.
FAULTS: Dict[str, Dict[str, List[str]]] = packaged_json(__package__, "options.json")["faults"]
# Faults in starting the ranks, which only our own launcher can inject.
LAUNCHER_FAULTS = ("busy-port", "unresolvable-master")
EVERY_PHASE = ""


class UsageError(argparse.ArgumentTypeError):
    """A wrong option; the text lists the right ones."""


@frozen
class Options:
    """The names are those of the parsed options, but for `skipped`, which follows from --only and
    --skip."""

    out: Path
    folder: Path
    skipped: tuple[str, ...]
    ranks: int | None
    profile: str
    backend: str
    device: str
    timeout_s: float
    deadlines_s: list[tuple[str, float]]
    expect_torch: str | None
    expect_cuda: str | None
    expect_nccl: str | None
    require_gpu: bool
    # Warnings about speed are failures.
    strict: bool
    # As the user states them: `die:1:barrier`.
    faults: list[str]

    @property
    def planned(self) -> tuple[str, ...]:
        """The phases that run, in order."""
        return tuple(phase for phase in PHASES if phase not in self.skipped)

    @property
    def quick(self) -> bool:
        return self.profile == "quick"

    def deadline_s(self, phase: str, default: float) -> float:
        """The phase's own deadline if one is set, else the one for every phase, else the
        default."""
        deadlines_s = dict(self.deadlines_s)
        return deadlines_s.get(phase, deadlines_s.get(EVERY_PHASE, default))

    def fault(self, kind: str, *where: object) -> bool:
        """Whether the user injects this fault. where: its rank and phase, if it has them."""
        return ":".join(map(str, (kind, *where))) in self.faults


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(arguments: Sequence[str]) -> Options:
    """The options of a test that would start its ranks here. Raises UsageError."""
    parser = _Parser(add_help=False)
    add_arguments(parser)
    options = from_namespace(parser.parse_args(arguments))
    if options.ranks is not None:
        check_faults(options, options.ranks)
    return options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    types = {
        "path": _absolute,
        "count": _positive,
        "seconds": _seconds,
        "deadline": parse_deadline,
        "fault": parse_fault,
    }
    for row in packaged_json(__package__, "options.json")["options"]:
        option = dict(row)
        if "type" in option:
            option["type"] = types[option["type"]]
        if option.get("choices") == "phases":
            option["choices"] = PHASES
        option["help"] = option["help"].replace("{faults}", fault_forms())
        parser.add_argument(option.pop("flag"), **option)


def from_namespace(namespace: argparse.Namespace) -> Options:
    """The options, with every check that is possible before a rank exists. Raises UsageError."""
    values = dict(vars(namespace))
    values["skipped"] = skipped_phases(values.pop("only"), values.pop("skip"))
    values["folder"] = values["folder"] or values["out"]
    options = Options(**values)
    # An injected fault whose phase does not run would prove nothing.
    for fault in options.faults:
        kind = fault.partition(":")[0]
        phase = _value(fault, "PHASE")
        phases = [phase] if phase else FAULTS[kind]["phases"]
        if phases and set(phases) <= set(options.skipped):
            raise UsageError(
                f"--inject {kind}: {' or '.join(phases)} would detect it, but is skipped"
            )
    return options


def skipped_phases(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """The phases that do not run. facts and rendezvous always run, except with `--only facts`.
    Raises UsageError."""
    for phase in set(skip).intersection(REQUIRED_PHASES):
        raise UsageError(f"--skip {phase}: nothing can be tested without it")
    selected = set(only) or set(PHASES)
    if selected != {"facts"}:
        selected |= set(REQUIRED_PHASES)
    return tuple(phase for phase in PHASES if phase not in selected or phase in skip)


def parse_deadline(text: str) -> tuple[str, float]:
    phase, equals, number = text.rpartition("=")
    if equals:
        _check_phase(text, phase)
    return phase, _seconds(number)


def parse_fault(text: str) -> str:
    kind, *values = text.split(":")
    if kind not in FAULTS or len(values) != len(FAULTS[kind]["values"]):
        raise UsageError(f"no such fault: {text!r}; there are {fault_forms()}")
    for value, name in zip(values, FAULTS[kind]["values"]):
        if name == "RANK" and not re.fullmatch("0|[1-9][0-9]*", value):
            raise UsageError(f"{text!r}: {value!r} is not a rank")
        if name == "PHASE":
            _check_phase(text, value)
    return text


def _check_phase(text: str, phase: str) -> None:
    if phase not in PHASES:
        raise UsageError(f"{text!r}: no such phase; there are {', '.join(PHASES)}")


def _value(fault: str, name: str) -> str:
    """The rank or phase of a fault; empty if it has none."""
    kind, *values = fault.split(":")
    return dict(zip(FAULTS[kind]["values"], values)).get(name, "")


def for_world(options: Options, world_size: int) -> Options:
    """With `--only facts`, a single rank needs no rendezvous; several ranks do, to compare their
    facts."""
    if options.planned != ("facts",) or world_size == 1:
        return options
    skipped = tuple(phase for phase in options.skipped if phase not in REQUIRED_PHASES)
    return replace(options, skipped=skipped)


def check_faults(options: Options, world_size: int) -> None:
    """Raises UsageError for a fault on a rank that does not exist."""
    for fault in options.faults:
        rank = int(_value(fault, "RANK") or 0)
        if rank >= world_size:
            kind = fault.partition(":")[0]
            raise UsageError(f"--inject {kind}: there is no rank {rank} among {world_size}")


def fault_forms() -> str:
    return ", ".join(":".join((kind, *fault["values"])) for kind, fault in FAULTS.items())


def _absolute(name: str) -> Path:
    return Path(name).absolute()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise UsageError(f"{number} is not a number of ranks")
    return number
