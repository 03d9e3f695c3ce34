"""The options of a smoke test, their defaults, and the faults that can be injected."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import bandwidth, baseline

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
# No other phase can run without these.
REQUIRED_PHASES = ("facts", "rendezvous")
PROFILES = ("quick", "default", "full")
BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
# Each kind of fault, and the values that follow it.
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
    "wrong-product": ("RANK",),
    "wrong-shape": ("RANK",),
    "missing-parameter": ("RANK",),
    "disk-full": ("RANK",),
    "unwritable": ("RANK",),
    "unmounted": ("RANK",),
    "slow-folder": ("RANK",),
    "flip-bit": (),
}
# The phases that detect the faults that name no phase.
DETECTING_PHASES = {
    "wrong-product": ("compute",),
    "wrong-shape": ("ddp",),
    "missing-parameter": ("ddp",),
    "disk-full": ("filesystem", "checkpoint"),
    "unwritable": ("filesystem", "checkpoint"),
    "unmounted": ("filesystem", "checkpoint"),
    "slow-folder": ("filesystem",),
    "flip-bit": ("checkpoint",),
}
# Faults in starting the ranks, which only our own launcher can inject.
LAUNCHER_FAULTS = ("busy-port", "unresolvable-master")
TIMEOUT_S = 600.0
EVERY_PHASE = ""


class UsageError(ValueError):
    """A wrong option; the text lists the right ones."""


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Options:
    out: Path
    folder: Path
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
    # Warnings about speed are failures.
    strict: bool
    faults: tuple[Fault, ...]
    skipped: tuple[str, ...] = ()
    junit: Path | None = None
    # Curves of expected bandwidth that replace the shipped ones.
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
        """The phase's own deadline if one is set, else the one for every phase, else the
        default."""
        deadlines_s = dict(self.deadlines_s)
        return deadlines_s.get(phase, deadlines_s.get(EVERY_PHASE, default))

    def fault(self, kind: str, rank: int | None = None, phase: str | None = None) -> bool:
        """Whether the user injects this fault on this rank and in this phase."""
        return Fault(kind, rank, phase) in self.faults


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
    add = parser.add_argument
    add(
        "--out", type=Path, required=True, metavar="DIR", help="folder for report.json and the logs"
    )
    add(
        "--junit",
        type=Path,
        metavar="FILE",
        help="also write the report as JUnit XML, for CI services",
    )
    add(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder in which checkpoints are tested, shared by all ranks (default: OUT)",
    )
    add(
        "--ranks",
        type=_positive,
        metavar="N",
        help="ranks to start here (default: one per GPU, or 2 without GPUs)",
    )
    add(
        "--profile",
        choices=PROFILES,
        default="default",
        help="how much to measure (default: %(default)s)",
    )
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
        help="run only this phase (repeatable)",
    )
    add(
        "--skip",
        action="append",
        default=[],
        choices=PHASES,
        metavar="PHASE",
        help="skip this phase (repeatable)",
    )
    add(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="auto is nccl if torch sees a GPU, else gloo",
    )
    add(
        "--device",
        choices=DEVICES,
        default="auto",
        help="where the tensors are: auto is cuda with nccl, cpu with gloo",
    )
    add(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="seconds for the whole run (default: %(default)g)",
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
        help="seed of all test values (default: %(default)s)",
    )
    _add_expectations(parser)
    add(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT",
        help=f"inject a fault: {fault_forms()}",
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
        help="curves of expected bandwidth (default: published ones, if there are any)",
    )
    add(
        "--baseline",
        metavar="save=FILE|compare=FILE",
        help="save this run's bandwidths, or compare them with those of an earlier run",
    )
    add(
        "--strict",
        action="store_true",
        help="fail, instead of warning, if something works but is slower than it should be",
    )
    add(
        "--require-gpu",
        action="store_true",
        help="fail if there is no GPU, instead of rehearsing on the CPU",
    )


def from_namespace(namespace: argparse.Namespace) -> Options:
    """The options, with every check that is possible before a rank exists. Raises UsageError."""
    out = namespace.out.absolute()
    options = Options(
        out=out,
        folder=(namespace.folder or namespace.out).absolute(),
        ranks=namespace.ranks,
        profile=namespace.profile,
        backend=namespace.backend,
        device=namespace.device,
        timeout_s=namespace.timeout,
        deadlines_s=tuple(parse_deadline(text) for text in namespace.deadline),
        seed=namespace.seed,
        expect_torch=namespace.expect_torch,
        expect_cuda=namespace.expect_cuda,
        expect_nccl=namespace.expect_nccl,
        require_gpu=namespace.require_gpu,
        strict=namespace.strict,
        faults=tuple(parse_fault(text) for text in namespace.inject),
        skipped=skipped_phases(namespace.only, namespace.skip),
        junit=namespace.junit and namespace.junit.absolute(),
        expect=namespace.expect and reference_file(namespace.expect),
        baseline=None if namespace.baseline is None else parse_baseline(namespace.baseline, out),
    )
    _check_skipped(options)
    if not 0 < options.timeout_s < math.inf:
        raise UsageError(f"--timeout {options.timeout_s:g}: it must be seconds above 0")
    return options


def skipped_phases(only: Sequence[str], skip: Sequence[str]) -> tuple[str, ...]:
    """The phases that do not run. facts and rendezvous always run, except with `--only facts`.
    Raises UsageError."""
    for phase in skip:
        if phase in REQUIRED_PHASES:
            raise UsageError(f"--skip {phase}: nothing can be tested without it")
    if not only:
        selected = set(PHASES)
    elif set(only) == {"facts"}:
        selected = {"facts"}
    else:
        selected = {*only, *REQUIRED_PHASES}
    return tuple(phase for phase in PHASES if phase not in selected or phase in skip)


def _check_skipped(options: Options) -> None:
    """An injected fault whose phase does not run would prove nothing; without the phase collectives
    there are no bandwidths."""
    if options.baseline is not None and "collectives" in options.skipped:
        raise UsageError(
            "--baseline: bandwidths are measured in the phase collectives, which is skipped"
        )
    for fault in options.faults:
        if fault.phase in options.skipped:
            raise UsageError(f"--inject {fault.kind}: the phase {fault.phase} is skipped")
        phases = DETECTING_PHASES.get(fault.kind, ())
        if phases and set(phases) <= set(options.skipped):
            raise UsageError(
                f"--inject {fault.kind}: {' or '.join(phases)} would detect it, but is skipped"
            )


def reference_file(path: Path) -> Path:
    """The absolute path of a file of reference curves, after reading it. Raises UsageError."""
    try:
        bandwidth.load_curves(path)
    except bandwidth.ReferenceUnreadable as error:
        raise UsageError(f"--expect {error}") from error
    return path.absolute()


def parse_baseline(text: str, out: Path) -> tuple[str, Path]:
    """Verb and file. out: the folder of the report, which is made later. Raises UsageError."""
    verb, _, name = text.partition("=")
    if verb not in ("save", "compare") or not name:
        raise UsageError(f"--baseline {text}: write save=FILE or compare=FILE")
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
        raise UsageError(f"--deadline {text}: it must be seconds above 0, as in 30 or barrier=30")
    return phase, seconds


def parse_fault(text: str) -> Fault:
    kind, *values = text.split(":")
    names = FAULTS.get(kind)
    if names is None or len(values) != len(names):
        raise UsageError(f"no such fault: {text!r}; there are {fault_forms()}")
    value_of = dict(zip(names, values))
    rank, phase = value_of.get("RANK"), value_of.get("PHASE")
    if rank is not None and not rank.isdigit():
        raise UsageError(f"{text!r}: {rank!r} is not a rank")
    if phase is not None and phase not in PHASES:
        raise UsageError(f"{text!r}: no such phase; there are {', '.join(PHASES)}")
    return Fault(kind, None if rank is None else int(rank), phase)


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
        if fault.rank is not None and fault.rank >= world_size:
            raise UsageError(
                f"--inject {fault.kind}: there is no rank {fault.rank} among {world_size}"
            )


def fault_forms() -> str:
    return ", ".join(":".join((kind, *names)) for kind, names in FAULTS.items())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of ranks")
    return number
