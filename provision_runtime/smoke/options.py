"""What the user asks of a smoke test: options, their defaults, and the faults to inject."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bandwidth import baseline, reference

if TYPE_CHECKING:
    from collections.abc import Sequence

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
# Without these nothing can be asked of the others.
ALWAYS = ("facts", "rendezvous")
PROFILES = ("quick", "default", "full")
BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
# kind: what follows it.
FAULTS = {
    "absent": ("RANK",),
    "other-torch": ("RANK",),
    "small-shm": ("RANK",),
    "shadow-nccl": ("RANK",),
    "user-site": ("RANK",),
    "die": ("RANK", "PHASE"),
    "stop": ("RANK", "PHASE"),
    "hang": ("RANK", "PHASE"),
    "raise": ("RANK", "PHASE"),
    "busy-port": (),
    "unresolvable-master": (),
    "clock-skew": ("RANK",),
    "slow-rank": ("RANK",),
    "skip-barrier": ("RANK",),
    "other-collective": ("RANK",),
    "wrong-value": ("RANK",),
    "wrong-shape": ("RANK",),
    "missing-parameter": ("RANK",),
    "disk-full": ("RANK",),
    "unwritable": ("RANK",),
    "unmounted": ("RANK",),
    "slow-folder": ("RANK",),
    "flip-bit": (),
}
# Where a fault that names no phase shows, in one of these.
SHOWN_IN = {
    "wrong-shape": ("ddp",),
    "missing-parameter": ("ddp",),
    "disk-full": ("filesystem", "checkpoint"),
    "unwritable": ("filesystem", "checkpoint"),
    "unmounted": ("filesystem", "checkpoint"),
    "slow-folder": ("filesystem",),
    "flip-bit": ("checkpoint",),
}
# Faults in how the ranks are started, which only our own launcher does.
OF_THE_LAUNCHER = ("busy-port", "unresolvable-master")
TIMEOUT_S = 600.0
EVERY_PHASE = ""


class UsageError(ValueError):
    """An option that makes no sense; the text lists what would."""


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Options:
    out: Path
    checkpoint_dir: Path
    ranks: int | None
    profile: str
    backend: str
    timeout_s: float
    deadlines_s: tuple[tuple[str, float], ...]
    seed: int
    expect_torch: str | None
    expect_cuda: str | None
    expect_nccl: str | None
    require_gpu: bool
    faults: tuple[Fault, ...]
    skipped: tuple[str, ...] = ()
    junit: Path | None = None
    # Curves of expected bandwidth, in place of those that are shipped.
    expect: Path | None = None
    # "save" or "compare", and the file.
    baseline: tuple[str, Path] | None = None
    device: str = "auto"

    @property
    def planned(self) -> tuple[str, ...]:
        """The phases that run, in order."""
        return tuple(phase for phase in PHASES if phase not in self.skipped)

    @property
    def quick(self) -> bool:
        return self.profile == "quick"

    def deadline_s(self, phase: str, default: float) -> float:
        """The phase's own where it was given one, else the one for all, else the default."""
        given = dict(self.deadlines_s)
        return given.get(phase, given.get(EVERY_PHASE, default))

    def fault(self, kind: str, rank: int | None = None, phase: str | None = None) -> bool:
        """Whether this fault is to be injected here."""
        return Fault(kind, rank, phase) in self.faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--out", type=Path, required=True, metavar="DIR", help="folder for report.json and the logs"
    )
    add(
        "--junit",
        type=Path,
        metavar="FILE",
        help="write the report as JUnit XML too, for CI services",
    )
    add(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="folder to test checkpoints in, shared by all ranks (OUT)",
    )
    add(
        "--ranks",
        type=_positive,
        metavar="N",
        help="ranks to start here (default: one per GPU, or 2 without GPUs)",
    )
    add("--profile", choices=PROFILES, default="default", help="how much is measured (%(default)s)")
    add(
        "--quick",
        dest="profile",
        action="store_const",
        const="quick",
        help="the same as --profile quick",
    )
    add(
        "--full",
        dest="profile",
        action="store_const",
        const="full",
        help="the same as --profile full",
    )
    add(
        "--only",
        action="append",
        default=[],
        choices=PHASES,
        metavar="PHASE",
        help="only this phase (repeatable)",
    )
    add(
        "--skip",
        action="append",
        default=[],
        choices=PHASES,
        metavar="PHASE",
        help="not this phase (repeatable)",
    )
    add(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="auto is nccl where torch sees a GPU, else gloo",
    )
    add(
        "--device",
        choices=DEVICES,
        default="auto",
        help="where the tensors are: auto is cuda over nccl, cpu over gloo",
    )
    add(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="seconds for everything (%(default)g)",
    )
    add(
        "--deadline",
        action="append",
        default=[],
        metavar="[PHASE=]S",
        help="seconds for a phase, or for every phase",
    )
    add(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="seed of every value that is sent (%(default)s)",
    )
    add("--check", action="store_true", help="only check these options; run nothing")
    _add_expectations(parser)
    add(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT",
        help=f"rehearse a fault: {fault_forms()}",
    )


def _add_expectations(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--expect-torch",
        metavar="VERSION",
        help="fail unless torch is this release, e.g. 2.3.1 or 2.3.1+cu121",
    )
    add(
        "--expect-cuda",
        metavar="VERSION",
        help="fail unless torch is built for this CUDA, e.g. 12.1, or none",
    )
    add("--expect-nccl", metavar="VERSION", help="fail unless this NCCL is loaded, e.g. 2.20.5")
    add(
        "--expect",
        type=Path,
        metavar="FILE",
        help="curves of expected bandwidth (default: published ones, where there are any)",
    )
    add(
        "--baseline",
        metavar="save=FILE|compare=FILE",
        help="keep this run's bandwidths, or compare them with those of an earlier run",
    )
    add(
        "--require-gpu",
        action="store_true",
        help="fail where there is no GPU, instead of rehearsing on CPU",
    )


def from_namespace(chosen: argparse.Namespace) -> Options:
    """Options with everything checked that can be checked before a rank exists. Raises UsageError."""
    options = Options(
        out=chosen.out.absolute(),
        checkpoint_dir=(chosen.checkpoint_dir or chosen.out).absolute(),
        ranks=chosen.ranks,
        profile=chosen.profile,
        backend=chosen.backend,
        device=chosen.device,
        timeout_s=chosen.timeout,
        deadlines_s=tuple(parse_deadline(text) for text in chosen.deadline),
        seed=chosen.seed,
        expect_torch=chosen.expect_torch,
        expect_cuda=chosen.expect_cuda,
        expect_nccl=chosen.expect_nccl,
        require_gpu=chosen.require_gpu,
        faults=tuple(parse_fault(text) for text in chosen.inject),
        skipped=skipped(chosen.only, chosen.skip),
        junit=chosen.junit and chosen.junit.absolute(),
        expect=None if chosen.expect is None else curves(chosen.expect),
        baseline=None
        if chosen.baseline is None
        else parse_baseline(chosen.baseline, chosen.out.absolute()),
    )
    refuse_what_proves_nothing(
        options.skipped, options.faults, baseline_wanted=options.baseline is not None
    )
    if not 0 < options.timeout_s < math.inf:
        raise UsageError(f"--timeout {options.timeout_s:g}: seconds above 0 are needed")
    return options


def skipped(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """The phases that do not run. facts and rendezvous always do, but for `--only facts`. Raises UsageError."""
    needed = [phase for phase in skip if phase in ALWAYS]
    if needed:
        raise UsageError(f"--skip {needed[0]}: nothing can be tested without it")
    wanted = {"facts"} if set(only) == {"facts"} else {*only, *ALWAYS} if only else set(PHASES)
    return tuple(phase for phase in PHASES if phase not in wanted or phase in skip)


def refuse_what_proves_nothing(
    skipped: Sequence[str], faults: Sequence[Fault], *, baseline_wanted: bool
) -> None:
    """A rehearsal that would pass because its phase does not run proves nothing; bandwidths that nobody measures are none."""
    if baseline_wanted and "collectives" in skipped:
        raise UsageError(
            "--baseline: bandwidths are measured in the phase collectives, which is skipped"
        )
    for fault in faults:
        if fault.phase in skipped:
            raise UsageError(f"--inject {fault.kind}: the phase {fault.phase} is skipped")
        shown_in = SHOWN_IN.get(fault.kind, ())
        if shown_in and set(shown_in) <= set(skipped):
            raise UsageError(
                f"--inject {fault.kind}: it would show in {' or '.join(shown_in)}, which is skipped"
            )


def curves(path: Path) -> Path:
    """A file of curves that can be read; absolute. Raises UsageError."""
    try:
        reference.load(path)
    except reference.ExpectedUnreadable as error:
        raise UsageError(f"--expect {error}") from error
    return path.absolute()


def parse_baseline(text: str, out: Path) -> tuple[str, Path]:
    """Verb and file. out: the folder of the report, which is made if it is not there. Raises UsageError."""
    verb, _, name = text.partition("=")
    if verb not in ("save", "compare") or not name:
        raise UsageError(f"--baseline {text}: save=FILE or compare=FILE is needed")
    path = Path(name).absolute()
    try:
        if verb == "compare":
            baseline.load(path)
    except baseline.BaselineUnreadable as error:
        raise UsageError(f"--baseline {verb}: {error}") from error
    if verb == "save" and path.parent != out and not path.parent.is_dir():
        raise UsageError(f"--baseline save: there is no folder {path.parent}")
    return verb, path


def parse_deadline(text: str) -> tuple[str, float]:
    phase, _, number = text.rpartition("=")
    if phase not in (EVERY_PHASE, *PHASES):
        raise UsageError(f"--deadline {text}: no such phase; there are {', '.join(PHASES)}")
    try:
        seconds = float(number)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--deadline {text}: seconds above 0 are needed, as in 30 or barrier=30")
    return phase, seconds


def parse_fault(text: str) -> Fault:
    kind, *values = text.split(":")
    wanted = FAULTS.get(kind)
    if wanted is None or len(values) != len(wanted):
        raise UsageError(f"no such fault: {text!r}; there are {fault_forms()}")
    named: dict[str, Any] = {name: values[place] for place, name in enumerate(wanted)}
    if "RANK" in named and not named["RANK"].isdigit():
        raise UsageError(f"{text!r}: {named['RANK']!r} is not a rank")
    if "PHASE" in named and named["PHASE"] not in PHASES:
        raise UsageError(f"{text!r}: no such phase; there are {', '.join(PHASES)}")
    return Fault(kind, int(named["RANK"]) if "RANK" in named else None, named.get("PHASE"))


def for_world(options: Options, world_size: int) -> Options:
    """Facts alone need nobody else where there is one rank; those of several are worth little uncompared, so these meet."""
    if options.planned != ("facts",) or world_size == 1:
        return options
    return replace(
        options, skipped=tuple(phase for phase in options.skipped if phase not in ALWAYS)
    )


def check_faults(options: Options, world_size: int) -> None:
    refuse_faults_of_nobody(options.faults, world_size)


def refuse_faults_of_nobody(faults: Sequence[Fault], world_size: int) -> None:
    for fault in faults:
        if fault.rank is not None and fault.rank >= world_size:
            raise UsageError(
                f"--inject {fault.kind}: there is no rank {fault.rank} among {world_size}"
            )


def fault_forms() -> str:
    return ", ".join(":".join((kind, *rest)) for kind, rest in FAULTS.items())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of ranks")
    return number
