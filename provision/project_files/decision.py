"""What is decided of a project's files, and what became of each statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.core.dataclass import frozen
from provision.core.package_names import parse_distribution, url_filename
from provision.core.platforms import PLATFORM
from provision.core.statements import PipRequirement, Statement
from provision.project_files.account import Entry, Outcome

CPU = "cpu"
TORCH = ("torch", "pytorch", "pytorch-gpu", "pytorch-cpu", "libtorch")
COMPANIONS = ("torchvision", "torchaudio")
# What chooses a build of torch.
OF_TORCH = (*TORCH, *COMPANIONS, "pytorch-cuda", "cudatoolkit", "cuda-version", "cpuonly")
_OF_CONDA = ("python", "cudatoolkit", "pytorch-cuda", "cpuonly")
_LOCAL = re.compile(r"\+(?:cu\d{3}|cpu|rocm[\d.]*|xpu)\b")


@frozen
class Choices:
    """What the user states, which counts before every file. environment: the name of the one that
    has it already, and stays as it is; companions: whether that has torchvision and torchaudio."""

    torch: str | None = None
    cuda: str | None = None
    cpu: bool = False
    python: str | None = None
    environment: str = ""
    companions: bool = True


@frozen
class Package:
    """A package that a statement requests, in the words of pip and conda alike.

    specifier: a version specifier. local: +cu121 of 2.3.1+cu121. build: of a conda package.
    requirement: of pip.
    """

    statement: Statement
    name: str
    specifier: str = ""
    local: str = ""
    build: str = ""
    channel: str = ""
    requirement: PipRequirement | None = None

    def __str__(self) -> str:
        """The line that the tables of `cuda` and `packages` match."""
        manager = "pip" if self.requirement else "conda"
        version = f"{self.specifier}{self.local}".replace(" ", "")
        origin = "exported" if self.statement.exported else "requested"
        return f"{manager} {self.name} {version} {self.build} {origin}"


@dataclass(kw_only=True)
class Request:
    """What statements come to, decided in one pass for one Python.

    content: keys of spec.yml; `pip` has editables as `-e PATH`. cudas: the CUDA versions that they
    allow, newest first, if they state CUDA and leave more than one. index_cuda: the CUDA of the
    wheel that the index serves for a torch which pip's lines name exactly (`cpu` for none).
    releases: of torch, that are allowed. unpaired: companions that go with any torch. ended: what
    became of each statement. contradictions: of one file, or of what no release of torch meets.
    is_disputed: some statements contradict each other.
    """

    statements: Sequence[Statement]
    choices: Choices
    python: str
    located: Callable[[PipRequirement], str] | None
    content: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    cudas: tuple[str, ...] = ()
    index_cuda: str | None = None
    releases: list[str] = field(default_factory=list)
    packages: list[Package] = field(default_factory=list)
    unpaired: set[Statement] = field(default_factory=set)
    ended: dict[Statement, Entry] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    is_disputed: bool = False

    def __post_init__(self) -> None:
        """Read the packages that are requested on this platform. What is not one gets its entry."""
        for statement in self.statements:
            if statement.kind in ("pip", "constraint"):
                self.packages += self._pip_package(statement)
            elif statement.kind == "conda":
                self.packages += self._conda_package(statement)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What became of each statement, in the order of the files. An option that requests nothing,
        like a hash, belongs to the requirement of its line."""
        requests = {
            (statement.file, statement.line)
            for statement in self.statements
            if statement.kind != "ignored"
        }
        return tuple(
            self.ended[statement]
            for statement in self.statements
            if statement.kind != "ignored"
            or statement.next_step
            or (statement.file, statement.line) not in requests
        )

    def _pip_package(self, statement: Statement) -> Iterator[Package]:
        requirement = statement.requirement
        assert requirement is not None
        if not requirement.applies(self.python):
            reason = f"its marker does not hold for Python {self.python} on {PLATFORM}"
            self.leave_out(statement, reason)
            return
        name = canonicalize_name(requirement.name)
        if name in _OF_CONDA and not requirement.source:
            # Lines that somebody copied from a list of conda; the package index has other packages,
            # or none, under these names.
            yield Package(statement=statement, name=name, specifier=requirement.specifier)
            return
        version, _ = wheel_facts(requirement)
        specifier = f"=={version}" if version else requirement.specifier
        local = _LOCAL.search(specifier)
        yield Package(
            statement=statement,
            name=name,
            specifier=_LOCAL.sub("", specifier),
            local=local[0] if local else "",
            requirement=requirement,
        )

    def _conda_package(self, statement: Statement) -> Iterator[Package]:
        try:
            parts = conda.parse_requirement(statement.value)
        except ValueError as error:
            self.leave_out(statement, f"conda cannot read it: {error}")
            return
        yield Package(
            statement=statement,
            name=parts.name,
            specifier=re.sub(r"((?:>=|<=|>|<|~=)[\d.]+?)\.\*", r"\1", parts.version),
            build=parts.build,
            channel=parts.channel,
        )

    def end(
        self,
        statement: Statement,
        outcome: Outcome,
        *,
        became: str = "",
        reason: str = "",
        next_step: str = "",
    ) -> None:
        """Note what became of a statement, with its own reason and next step unless others are given;
        what was taken out of it is said too."""
        reasons = (reason or statement.reason, statement.credential.rstrip("."))
        if statement.credential and outcome == "taken":
            outcome = "translated"
        self.ended[statement] = Entry(
            file=statement.file,
            line=statement.line,
            text=statement.text,
            outcome=outcome,
            became=became,
            reason=". ".join(filter(None, reasons)),
            next_step=next_step or statement.next_step,
        )

    def leave_out(self, statement: Statement, reason: str = "", next_step: str = "") -> None:
        self.end(statement, "left out", reason=reason, next_step=next_step)

    def contradict(self, statement: Statement, earlier: Statement | None, option: str) -> None:
        """A statement that an earlier one, or an option, excludes."""
        environment = self.choices.environment
        if earlier is None and environment:
            step = f"provision build {environment} {option} --relock"
            self.leave_out(statement, f"the environment {environment} has another one", step)
        elif earlier is None:
            self.leave_out(statement, "an option says otherwise")
        else:
            where = f"{earlier.file}:{earlier.line}" if earlier.line else earlier.file
            step = f"add `{option}` to take this one"
            self.leave_out(statement, f"it contradicts `{earlier.text}` ({where})", step)
            self.is_disputed = True
            if statement.file == earlier.file:
                self.contradictions.append(
                    f"{where}: `{earlier.text}` and, in line {statement.line}, `{statement.text}` "
                    "contradict each other."
                )

    def add(self, key: str, statement: Statement, text: str) -> None:
        """Take a statement as an item of a list of spec.yml."""
        self.content.setdefault(key, []).append(text)
        outcome: Outcome = "translated" if statement.reason else "taken"
        self.end(statement, outcome, became=f"{key}: {text}")


@dataclass
class Narrowing:
    """The versions that statements allow together. is_open: nothing has narrowed them yet, so that
    versions which nobody knows are allowed. decisive: the statement that narrowed them last."""

    request: Request
    allowed: list[str]
    is_open: bool
    decisive: Statement | None = None

    def take(
        self, statement: Statement, versions: Sequence[str], option: str = "", what: str = ""
    ) -> bool:
        """Take what a statement allows, if something remains. Else it contradicts the others, if there
        is an option that takes it instead. what: the versions that it is about."""
        fitting = [version for version in self.allowed if version in versions]
        if self.is_open and not fitting:
            fitting = list(versions)
        if fitting and fitting != self.allowed:
            self.decisive, self.is_open, self.allowed = statement, False, fitting
        if not fitting and option and not self.is_open:
            self.request.contradict(statement, self.decisive, option)
        elif not fitting and option:
            self.request.contradictions.append(
                f"{statement.file}:{statement.line}: no release of PyTorch is for {what}."
            )
        return bool(fitting)


def wheel_facts(requirement: PipRequirement) -> tuple[str, str]:
    """The version in a wheel's file name, and the only Python that it is for; else empty."""
    file = parse_distribution(unquote(url_filename(requirement.source)))
    if file is None or not file.tags:
        return "", ""
    tags = file.tags
    minors = {re.sub(r"^cp3(\d+)$|.*", r"\1", tag.interpreter, count=1) for tag in tags}
    is_stable = any(tag.abi in ("abi3", "none") for tag in tags)
    minor = minors.pop() if len(minors) == 1 and not is_stable else ""
    return str(file.version), f"3.{minor}" if minor else ""
