"""Statements of a project's files -> the keys of spec.yml, and an account of every statement.

Pure. torch, CUDA and Python are chosen from what all files state about them: a version, an index, a
build string, a companion's version. Of statements that contradict each other, the one of the file
that leads counts, and the other one is named; within one file neither does.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from provision import catalog, sources
from provision.adapters import conda
from provision.core.credentials import credential_problem, public_request
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.package_names import url_filename
from provision.core.platforms import PLATFORM, PLATFORMS, Platform
from provision.core.requirement_lines import PipRequirement, parse_lines
from provision.project_files.account import Entry, Outcome, entry_of
from provision.project_files.requirements import shell_words
from provision.project_files.statements import Statement
from provision.project_files.versions import allowed_minors, named_minor

CPU = "cpu"
# The weight of compilers and of labels of channels, which may be of another CUDA than torch.
WEAK = 3
TORCH = ("torch", "pytorch", "pytorch-gpu", "pytorch-cpu", "libtorch")
COMPANIONS = ("torchvision", "torchaudio")
# What conda's builds of torch take their CUDA from, and wheels of torch bring.
_CUDA_CHOICES = ("pytorch-cuda", "cuda-version")
# Whoever requests these wants to compile; they also say for which CUDA.
_TOOLKITS = re.compile(
    r"cuda|cuda-toolkit|cudatoolkit-dev|cuda-nvcc(?!-tools|-impl).*|cuda-compiler|cuda-nvcc-dev.*"
)
# Packages that belong to a build of torch, by what brings them.
_PARTS_OF_TORCH = re.compile(
    r"cpuonly|pytorch-mutex|torchtriton|triton|pytorch-triton|cuda-(runtime|libraries|cudart)|nccl|cudnn"
    r"|nvidia-(cublas|cuda-cupti|cuda-nvrtc|cuda-runtime|cudnn|cufft|cufile|curand|cusolver|cusparse"
    r"|cusparselt|nccl|nvtx|nvjitlink|nvshmem)(-cu\d+)?"
)
_LIBRARIES = ("cudnn", "nccl")
_RUNTIME_NAME = "nvidia-cuda-runtime"
_RUNTIME = re.compile(rf"{_RUNTIME_NAME}(?:-cu\d+)?")
_NVIDIA_FAMILY = re.compile(r"nvidia-.+-cu(\d+)")
# Every environment has them; a version of theirs is a request.
_COME_ANYWAY = ("pip", "setuptools", "wheel", "ipykernel", "xxhash", "python-xxhash")
_OF_CONDA = re.compile(r"_.*|python_abi|conda|mamba|nomkl")
_CUDA_IN_BUILD = re.compile(r"cuda_?(\d{2})\.?(\d)")
_LOCAL = re.compile(r"\+(cu\d{3}|cpu)\b")
# PyTorch's wheel index, or a mirror of it, has a folder for each build.
_TORCH_INDEX = re.compile(
    r"/whl/(?:(nightly|test)/)?(cu\d{3}|cpu|rocm[\d.]+|xpu)?/?(?:torch_stable\.html)?$"
)
_CUDA_IN_LINK = re.compile(r"torch-[\d.]+(?:%2B|\+)(cu\d{3}|cpu)")
_LABEL = re.compile(r"(?:^|/)label/cuda-(\d+\.\d+)")
_EXACT = re.compile(r"={2,3}\s*(\d+(?:\.\d+)*)")
# Channels that provision takes where a build needs them, and conda's words.
_BUILD_CHANNELS = ("pytorch", "nvidia", "conda-forge")
_ANACONDA = ("defaults", "anaconda", "main", "r", "msys2")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user states, which counts before every file. environment: the name of the one that
    has it already, and stays as it is; companions: whether that has torchvision and torchaudio."""

    torch: str | None = None
    cuda: str | None = None
    cpu: bool = False
    python: str | None = None
    environment: str = ""
    companions: bool = True


@dataclass(frozen=True, kw_only=True)
class Request:
    """What files come to.

    content: keys of spec.yml; `pip` has editables as `-e PATH`. cudas: the CUDA versions that they
    allow, newest first, if they state CUDA and leave more than one. index_cuda: the CUDA of the
    wheel that the index serves for a torch which pip's lines name exactly (`cpu` for none).
    contradictions: of one file, or of what no release of torch meets.
    """

    content: Mapping[str, Any]
    entries: tuple[Entry, ...]
    name: str | None = None
    cudas: tuple[str, ...] = ()
    index_cuda: str | None = None
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Package:
    """A package that a statement requests, in the words of pip and conda alike.

    specifier: a version specifier. build: of a conda package. requirement: of pip.
    """

    statement: Statement
    name: str
    specifier: str = ""
    local: str = ""  # cu121 of 2.3.1+cu121
    build: str = ""
    channel: str = ""
    requirement: PipRequirement | None = None


@dataclass
class _Account:
    """What became of each statement so far."""

    environment: str = ""
    entries: dict[Statement, Entry] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def end(self, statement: Statement, outcome: Outcome, **facts: str) -> None:
        entry = entry_of(statement, outcome, **facts)
        if statement.credential:
            reason = ". ".join(filter(None, (entry.reason, statement.credential.rstrip("."))))
            outcome = "left out" if outcome == "left out" else "translated"
            entry = replace(entry, outcome=outcome, reason=reason)
        self.entries[statement] = entry

    def leave_out(self, statement: Statement, reason: str = "", next_step: str = "") -> None:
        self.end(statement, "left out", reason=reason, next_step=next_step)

    def contradict(self, statement: Statement, earlier: Statement | None, option: str = "") -> None:
        """A statement that an earlier one, or an option, excludes."""
        if earlier is None and self.environment:
            reason = f"the environment {self.environment} has another one"
            step = f"provision build {self.environment} {option} --relock"
            self.leave_out(statement, reason, step)
            return
        if earlier is None:
            self.leave_out(statement, "an option says otherwise")
            return
        where = f"{earlier.file}:{earlier.line}" if earlier.line else earlier.file
        reason = f"it contradicts `{earlier.text}` ({where})"
        step = f"add `{option}` to take this one" if option else "remove one of the two lines"
        self.leave_out(statement, reason, step)
        if statement.file == earlier.file:
            self.contradictions.append(
                f"{where}: `{earlier.text}` and, in line {statement.line}, `{statement.text}` "
                "contradict each other."
            )


def decide(
    statements: Iterable[Statement],
    choices: Choices | None = None,
    *,
    default_python: str,
    platform: Platform = PLATFORM,
    located: Callable[[PipRequirement], str] | None = None,
) -> Request:
    """The keys of spec.yml that statements come to, and what became of each statement.

    Markers are decided for the Python that is chosen: the default if it is allowed and torch has
    it, else the newest that is. located: the requirement of spec.yml for a folder or file of this
    machine; empty if the user must add it.
    """
    public = [_without_credentials(statement) for statement in dict.fromkeys(statements)]
    decision = functools.partial(
        _Decision, public, choices or Choices(), platform=platform, located=located
    )
    pythons = decision(python=default_python).possible_pythons(default_python)
    decided = []
    for python in pythons:
        decided.append(decision(python=python))
        decided[-1].run()
        if python in decided[-1].torch_pythons():
            return decided[-1].request()
    # None of them is known: the resolver says so, and which are.
    return decided[0].request()


def _without_credentials(statement: Statement) -> Statement:
    problem = credential_problem(statement.value) or credential_problem(statement.text)
    if problem is None:
        return statement
    return replace(
        statement,
        text=public_request(statement.text),
        value=public_request(statement.value),
        credential=statement.credential or problem,
    )


class _Decision:
    """One pass over the statements, for one Python."""

    def __init__(
        self,
        statements: Sequence[Statement],
        choices: Choices,
        *,
        python: str,
        platform: Platform,
        located: Callable[[PipRequirement], str] | None,
    ) -> None:
        self.statements, self.choices = statements, choices
        self.python, self.platform, self.located = python, platform, located
        self.account = _Account(choices.environment)
        self.content: dict[str, Any] = {}
        self.name: str | None = None
        self.cudas: tuple[str, ...] = ()
        self.index_cuda: str | None = None
        self.releases: list[str] = []  # of torch, that are allowed
        self.packages: list[_Package] = []
        self.unpaired: set[Statement] = set()  # companions that go with any torch

    def request(self) -> Request:
        return Request(
            content={key: value for key, value in self.content.items() if value not in ([], None)},
            entries=tuple(self._entries()),
            name=self.name,
            cudas=self.cudas,
            index_cuda=self.index_cuda,
            contradictions=tuple(self.account.contradictions),
        )

    def _entries(self) -> Iterator[Entry]:
        """The entries in the order of the files. An option that requests nothing, like a hash,
        belongs to the requirement of its line."""
        lines = Counter((statement.file, statement.line) for statement in self.statements)
        for statement in self.statements:
            is_alone = statement.line is None or lines[statement.file, statement.line] == 1
            if statement.kind != "ignored" or is_alone:
                yield self.account.entries[statement]

    def run(self) -> None:
        self.packages = self._read_packages()
        self._decide_python()
        torch = [package for package in self.packages if package.name in TORCH]
        companions = [package for package in self.packages if package.name in COMPANIONS]
        self._decide_torch(torch, companions)
        self._decide_cuda(torch + companions)
        self._take_others()

    # Packages.

    def _read_packages(self) -> list[_Package]:
        """The packages that are requested on this platform; what is not one gets its entry."""
        packages = []
        for statement in self.statements:
            if statement.kind in ("pip", "constraint"):
                package = self._pip_package(statement)
            elif statement.kind == "conda":
                package = self._conda_package(statement)
            else:
                continue
            if package is not None:
                packages.append(package)
        return packages

    def _pip_package(self, statement: Statement) -> _Package | None:
        lines = parse_lines(statement.value)
        requirement = lines[0].requirement if lines else None
        if requirement is None:
            reason = lines[0].reason if lines else "it is empty"
            step = lines[0].next_step if lines else ""
            self.account.leave_out(statement, reason, step)
            return None
        if not requirement.applies(self.python, self.platform):
            reason = f"its marker does not hold for Python {self.python} on {self.platform}"
            self.account.leave_out(statement, reason)
            return None
        name = canonicalize_name(requirement.name)
        specifier = requirement.specifier
        if requirement.source:
            filename = unquote(url_filename(requirement.source))
            try:
                version = parse_wheel_filename(filename)[1]
            except InvalidWheelFilename:
                pass
            else:
                specifier = f"=={version}"
        local = _LOCAL.search(specifier)
        return _Package(
            statement=statement,
            name=name,
            specifier=re.sub(r"\+[A-Za-z0-9.]+", "", specifier) if local else specifier,
            local=local[1] if local else "",
            requirement=requirement,
        )

    def _conda_package(self, statement: Statement) -> _Package | None:
        try:
            parts = conda.parse_requirement(statement.value)
        except ValueError as error:
            self.account.leave_out(statement, f"conda cannot read it: {error}")
            return None
        return _Package(
            statement=statement,
            name=parts.name,
            specifier=_without_stars(parts.version),
            build=parts.build,
            channel=parts.channel,
        )

    # Python.

    def _python_statements(self) -> list[tuple[Statement, str]]:
        """What is stated about Python, in order: statements, and the wheels of one Python."""
        stated = []
        packages = {package.statement: package for package in self.packages}
        for statement in self.statements:
            package = packages.get(statement)
            if statement.kind == "python":
                stated.append((statement, statement.value))
            elif package and package.name == "python" and package.requirement is None:
                stated.append((statement, package.specifier))
        for package in self.packages:
            minor = _wheel_python(package.requirement)
            if minor:
                stated.append((package.statement, f"=={minor}"))
        return stated

    def possible_pythons(self, default: str) -> list[str]:
        """The Pythons that the files allow, in the order in which they are tried."""
        self.packages = self._read_packages()
        pythons = self._allowed_pythons(None)
        newest_first = sorted(pythons, key=catalog.version_key, reverse=True)
        if self._python_statements() or self.choices.python:
            return [default] * (default in pythons) + [p for p in newest_first if p != default]
        by_distance = sorted(pythons, key=lambda p: abs(_minor(p) - _minor(default)))
        return by_distance

    def _allowed_pythons(self, account: _Account | None) -> list[str]:
        """The Pythons that all statements allow. account: where contradictions go."""
        known = sorted(
            {python for release in catalog.releases().values() for python in release.python},
            key=catalog.version_key,
        )
        allowed = [self.choices.python] if self.choices.python else known
        decisive: Statement | None = None
        for statement, specifier in self._python_statements():
            named = named_minor(specifier)
            universe = allowed + ([named] if named and allowed == known else [])
            try:
                fitting = allowed_minors(specifier, universe)
            except ValueError as error:
                if account:
                    account.leave_out(statement, str(error))
                continue
            if fitting:
                if not self.choices.python and (len(fitting) < len(allowed) or not decisive):
                    decisive = statement
                allowed = fitting
            elif account and (decisive or self.choices.python):
                newest = named or "".join(allowed_minors(specifier, known)[-1:])
                account.contradict(statement, decisive, f"--python {newest}")
            elif account:
                account.contradictions.append(
                    f"{statement.file}:{statement.line}: no release of PyTorch is for Python "
                    f"`{specifier}`."
                )
        return allowed

    def _decide_python(self) -> None:
        stated = self._python_statements()
        if not stated and not self.choices.python:
            return
        self._allowed_pythons(self.account)
        self.content["python"] = self.python
        for statement, specifier in stated:
            is_package = statement.kind not in ("python", "conda")
            if statement in self.account.entries or is_package:
                continue
            is_plain = named_minor(specifier) and "".join(re.findall(r"[\d.]+", specifier)) in (
                self.python,
                f"{self.python}.",
            )
            outcome: Outcome = "taken" if is_plain else "translated"
            reason = "" if is_plain else "an environment has one minor version of Python"
            self.account.end(statement, outcome, became=f'python: "{self.python}"', reason=reason)

    def torch_pythons(self) -> set[str]:
        """The Pythons for which the allowed releases have wheels, which are taken where they exist."""
        pythons: set[str] = set()
        for version in self.releases:
            release = catalog.releases().get(version)
            if release is None or self.choices.python:
                return {self.python}
            pythons.update(release.python)
        return pythons

    # torch and its companions.

    def _decide_torch(self, torch: Sequence[_Package], companions: Sequence[_Package]) -> None:
        table = list(catalog.releases())
        allowed = table
        decisive: Statement | None = None
        exact = ""
        clauses: list[str] = []
        if self.choices.torch:
            exact = self.choices.torch
            allowed = _matching(exact) or [exact]
        for package in torch:
            expression = _torch_expression(package)
            releases = _matching(expression) if expression else table
            if not releases:  # the facts know none; the resolver says so
                releases = [expression]
            fitting = [version for version in releases if version in allowed]
            if allowed is table and not fitting:
                fitting = releases
            if not fitting:
                option = f"--torch {shlex.quote(expression)}"
                self.account.contradict(package.statement, decisive, option)
                continue
            if expression:
                decisive = package.statement if len(fitting) < len(allowed) else decisive
                allowed = fitting
                clauses.append(expression)
        for package in companions:
            releases = _paired(package)
            fitting = [version for version in allowed if version in releases]
            if not self.choices.companions:
                self.unpaired.add(package.statement)
                continue
            if not package.specifier:
                continue
            if fitting:
                decisive = decisive or package.statement
                allowed = fitting
            elif not releases or not _pins_torch(package, allowed):
                self.unpaired.add(package.statement)
            else:
                self.account.contradict(package.statement, decisive, f"--torch {releases[-1]}")
        self.releases = allowed
        expression = exact or _joined(clauses, allowed, table)
        if expression:
            self.content["torch"] = expression
        if torch or companions:
            self.content["companions"] = bool(companions)
        self._judge_index_default(torch)

    def _judge_index_default(self, torch: Sequence[_Package]) -> None:
        """An exact torch of pip's lines names one wheel of the index, and so its CUDA."""
        for package in torch:
            is_exact = package.requirement and _EXACT.fullmatch(package.specifier.strip())
            if is_exact and len(self.releases) == 1 and self.releases[0] in catalog.releases():
                default = catalog.releases()[self.releases[0]].index_default.get(self.platform)
                if default:
                    self.index_cuda = _cuda_of_tag(default.build)

    # CUDA.

    def _cuda_statements(self) -> list[tuple[int, Statement, str]]:
        """What is stated about CUDA: its weight (0 weighs most), the statement and a specifier; what
        leads first, and the weakest of all files last. `cpu` is a build without CUDA; an empty
        specifier any build with CUDA."""
        stated: list[tuple[int, Statement, str]] = []
        for package in self.packages:
            statement, name = package.statement, package.name
            if name in (*TORCH, *COMPANIONS):
                if package.local:
                    stated.append((0, statement, _cuda_of_tag(package.local)))
                in_build = _CUDA_IN_BUILD.search(package.build)
                if in_build:
                    stated.append((0, statement, f"{in_build[1]}.{in_build[2]}"))
                elif "cpu" in package.build or name == "pytorch-cpu":
                    stated.append((0, statement, CPU))
                elif re.search("cuda|gpu", package.build) or name == "pytorch-gpu":
                    stated.append((2, statement, ""))
            elif name == "cpuonly":
                stated.append((0, statement, CPU))
            elif name == "cudatoolkit":
                is_open = package.specifier[:1] in ("", ">", "!")
                bound = ",<12" if is_open else ""  # its last version is 11.8
                weight = WEAK if statement.exported else 1
                stated.append((weight, statement, f"{package.specifier or '*'}{bound}"))
            elif name == "cuda-version" and statement.exported:
                stated.append((WEAK, statement, package.specifier))
            elif name in _CUDA_CHOICES or (_RUNTIME.fullmatch(name) and package.specifier):
                stated.append((1, statement, package.specifier))
            elif package.requirement and _PARTS_OF_TORCH.fullmatch(name):
                family = _NVIDIA_FAMILY.fullmatch(name)
                if family:
                    stated.append((2, statement, f"=={family[1]}.*"))
            elif _TOOLKITS.fullmatch(name) and not package.requirement:
                stated.append((WEAK, statement, package.specifier))
            if package.channel and (label := _LABEL.search(package.channel)):
                stated.append((WEAK, statement, label[1]))
        for statement in self.statements:
            if statement.kind == "cuda":
                stated.append((0, statement, statement.value))
            elif statement.kind in ("index", "find-links"):
                is_of_torch = not statement.packages or set(statement.packages) & set(TORCH)
                index = _TORCH_INDEX.search(statement.value)
                link = _CUDA_IN_LINK.search(statement.value)
                if index and is_of_torch and index[2] and index[2].startswith(("cu", "cpu")):
                    stated.append((1, statement, _cuda_of_tag(index[2])))
                elif link:
                    stated.append((2, statement, _cuda_of_tag(link[1])))
            elif statement.kind == "channel" and (label := _LABEL.search(statement.value)):
                stated.append((WEAK, statement, label[1]))
        files = list(dict.fromkeys(statement.file for statement in self.statements))

        def order(item: tuple[int, Statement, str]) -> tuple[bool, int, int, int]:
            weight, statement, _ = item
            position = self.statements.index(statement)
            return (weight == WEAK, files.index(statement.file), weight, position)

        return sorted(stated, key=order)

    def _decide_cuda(self, torch: Sequence[_Package]) -> None:
        stated = self._cuda_statements()
        universe = list(catalog.toolkits())
        builds = self._built_cudas(universe)
        chosen = CPU if self.choices.cpu else self.choices.cuda
        allowed = [chosen] if chosen else [CPU, *universe]
        decisive: Statement | None = None
        specifiers: list[str] = []
        used: list[Statement] = []
        for weight, statement, specifier in stated:
            named = specifier if specifier == CPU else named_minor(specifier)
            candidates = allowed + ([named] if named and len(allowed) > len(universe) else [])
            try:
                fitting = _fitting_cudas(specifier, candidates)
            except ValueError as error:
                self.account.leave_out(statement, str(error))
                continue
            if chosen == "auto" and specifier != CPU:
                fitting = allowed
            is_weak = weight == WEAK and decisive is not None
            if is_weak and not set(fitting) & {*builds, *(allowed if len(allowed) == 1 else ())}:
                continue  # a compiler of another CUDA than that of torch
            if fitting:
                allowed = fitting
                decisive = decisive or (None if chosen else statement)
                specifiers.append(specifier)
                used.append(statement)
            elif weight < WEAK:
                newest = [named] if named else _fitting_cudas(specifier, universe)[-1:]
                option = "--cpu" if specifier == CPU else f"--cuda {''.join(newest)}"
                self.account.contradict(statement, decisive, option)
        if chosen:
            self.content["cpu" if chosen == CPU else "cuda"] = True if chosen == CPU else chosen
        elif used and allowed == [CPU]:
            self.content["cpu"] = True
        elif used:
            self._settle_cuda([cuda for cuda in allowed if cuda != CPU], specifiers)
        became = ""
        if "cpu" in self.content:
            became = "cpu: true"
        elif "cuda" in self.content:
            became = f'cuda: "{self.content["cuda"]}"'
        elif self.cudas:
            became = f'cuda: "{self.cudas[0]}"'
        for statement in used:
            is_torch = any(package.statement == statement for package in torch)
            is_part = statement.kind == "pip" and not statement.value.startswith(_RUNTIME_NAME)
            if statement in self.account.entries or is_torch or is_part:
                continue
            if statement.kind == "find-links" and not _TORCH_INDEX.search(statement.value):
                continue  # a page of wheels for this CUDA, which is taken as such
            self.account.end(statement, "translated", became=became)
        self._end_torch(torch, used, became)

    def _built_cudas(self, allowed: Sequence[str]) -> list[str]:
        """Of the newest release that has a build for one of some CUDA versions, and for the Python:
        the versions, newest first."""
        for version in reversed(self.releases):
            cudas: list[str] = []
            known = version in catalog.releases()
            for candidate in sources.candidates_of(version) if known else ():
                build = candidate.build
                pythons = build and (build.python or build.python_seen)
                if build and build.cuda in allowed and (not pythons or self.python in pythons):
                    cudas.append(build.cuda)
            if cudas:
                return list(dict.fromkeys(cudas))
        return []

    def _settle_cuda(self, allowed: Sequence[str], specifiers: Sequence[str]) -> None:
        majors = {re.sub(r"[=\s*]|\.(?=\*|$)", "", text) for text in specifiers if text}
        if len(allowed) == 1:
            self.content["cuda"] = allowed[0]
        elif len(majors) == 1 and (major := majors.pop()).isdigit():
            self.content["cuda"] = major
        else:
            newest_first = sorted(allowed, key=catalog.version_key, reverse=True)
            self.cudas = tuple(self._built_cudas(allowed) or newest_first)

    def _end_torch(
        self, torch: Sequence[_Package], with_cuda: Sequence[Statement], cuda: str
    ) -> None:
        """The entries of torch and its companions."""
        for package in torch:
            statement = package.statement
            if statement in self.account.entries or statement in self.unpaired:
                continue
            became = []
            if package.specifier and "torch" in self.content:
                became.append(f'torch: "{self.content["torch"]}"')
            if statement in with_cuda and cuda:
                became.append(cuda)
            if package.name in COMPANIONS and not became:
                became.append("companions: true")
            is_same = statement not in with_cuda and (
                not package.specifier
                or str(self.content.get("torch")) == _torch_expression(package)
            )
            outcome: Outcome = "taken" if is_same else "translated"
            self.account.end(statement, outcome, became=", ".join(became) or "torch")

    # Everything else.

    def _add(self, key: str, statement: Statement, text: str) -> None:
        """An item of a list of spec.yml."""
        self.content.setdefault(key, []).append(text)
        outcome: Outcome = "translated" if statement.reason else "taken"
        self.account.end(statement, outcome, became=f"{key}: {text}")

    def _take_others(self) -> None:
        self._take_packages()
        requested = {
            package.name for package in self.packages if package.statement.kind != "constraint"
        }
        for package in self.packages:
            if package.statement not in self.account.entries:
                self._take_constraint(package, requested)
        for statement in self.statements:
            if statement in self.account.entries:
                continue
            if statement.kind == "name":
                self.name = self.name or statement.value
                self.account.end(statement, "taken", became=f"name: {self.name}")
            elif statement.kind == "channel":
                self._take_channel(statement)
            elif statement.kind in ("index", "find-links"):
                self._take_index(statement)
            elif statement.kind == "platform":
                self._take_platform(statement)
            elif statement.kind in ("include", "constraints"):
                self.account.end(statement, "taken", became="read")
            else:
                self.account.leave_out(statement)
        channels = self.content.get("channels")
        if channels:
            self.content["channels"] = list(dict.fromkeys([*channels, "conda-forge"]))

    def _take_packages(self) -> None:
        for package in self.packages:
            statement = package.statement
            is_conda = package.requirement is None
            if is_conda and _TOOLKITS.fullmatch(package.name) and not statement.exported:
                self._keep_toolkit(package)
            if statement in self.account.entries or statement.kind == "constraint":
                continue
            if package.requirement is None:
                self._take_conda(package)
            else:
                self._take_pip(package, package.requirement)

    def _keep_toolkit(self, package: _Package) -> None:
        """A CUDA compiler stays requested, from its channel, besides the CUDA that it states."""
        self.content.setdefault("conda", []).append(_conda_text(package))
        stated = [statement.value for statement in self.statements if statement.kind == "channel"]
        channels = [name for name in stated if _LABEL.search(name)]
        if package.channel:
            channels = [package.channel]
        elif "nvidia" in stated and not package.name.startswith("cuda-nvcc"):
            channels = channels or ["nvidia"]  # conda-forge has cuda-nvcc of every release
        for name in channels:
            self._add_channel(name)
        entry = self.account.entries.get(package.statement)
        became = [entry.became] if entry else []
        became.append(f"conda: {_conda_text(package)}")
        self.account.end(
            package.statement, "translated", became=", ".join(became), reason="for compiling"
        )

    def _take_conda(self, package: _Package) -> None:
        statement, name = package.statement, package.name
        if _OF_CONDA.fullmatch(name):
            self.account.leave_out(statement, "it belongs to conda itself")
        elif name in _LIBRARIES and not statement.exported:
            step = f"provision build NAME --{name} VERSION" if package.specifier else ""
            number = re.search(r"\d[\d.]*", package.specifier)
            if number:
                step = step.replace("VERSION", number[0].rstrip("."))
            reason = f"each build of torch brings its own {name}"
            self.account.leave_out(statement, reason, step)
        elif _PARTS_OF_TORCH.fullmatch(name):
            self.account.leave_out(statement, "the build of torch brings it")
        elif name in _COME_ANYWAY and (not package.specifier or name in ("pip", "wheel")):
            self.account.end(statement, "taken", became="every environment has it")
        elif statement.exported:
            # Libraries came with other packages as a rule; of Python's packages nobody knows.
            is_python = re.match(r"(?:.*_)?py[h\d]", package.build)
            version = re.search(r"\d+(?:\.\d+)?", package.specifier)
            reason = "the list does not say whether it was requested or came with another package"
            if is_python:
                reason = "a package of Python in a list that does not say what was requested"
            step = f"provision add NAME --conda {name}={version[0] if version else '*'}"
            self.account.leave_out(statement, reason, step)
        elif "|" in package.specifier:
            self.account.leave_out(
                statement,
                "spec.yml cannot hold alternatives (|)",
                f"provision add NAME --conda {name}",
            )
        else:
            self._add_conda(package)

    def _add_conda(self, package: _Package) -> None:
        text = _conda_text(package)
        became = f"conda: {text}"
        if package.channel and package.channel not in (*_BUILD_CHANNELS, *_ANACONDA):
            self._add_channel(public_request(package.channel))
            became += f", channels: {package.channel}"
        self.content.setdefault("conda", []).append(text)
        is_same = "channels:" not in became and not (package.build and package.build not in text)
        reason = "" if is_same else "its build string fits one environment"
        outcome: Outcome = "taken" if is_same else "translated"
        self.account.end(package.statement, outcome, became=became, reason=reason)

    def _take_pip(self, package: _Package, requirement: PipRequirement) -> None:
        statement, name = package.statement, package.name
        if _PARTS_OF_TORCH.fullmatch(name):
            self.account.end(statement, "taken", became="the build of torch brings it")
        elif name in _COME_ANYWAY and (not requirement.specifier or name in ("pip", "wheel")):
            self.account.end(statement, "taken", became="every environment has it")
        elif requirement.is_path:
            self._take_path(statement, replace(requirement, marker=""))
        elif self._contradicts(package):
            pass
        elif foreign := self._torch_of_wheel(requirement):
            reason = f"its file name is for torch {foreign}"
            step = f"name the wheel for torch {self.releases[-1]} instead"
            self.account.leave_out(statement, reason, step)
        else:
            self._add("pip", statement, str(replace(requirement, marker="")))

    def _take_path(self, statement: Statement, requirement: PipRequirement) -> None:
        text = self.located(requirement) if self.located else ""
        if text:
            self._add("pip", statement, text)
            return
        reason = "a wheel of it goes next to spec.yml; building one runs its code"
        step = f"provision add NAME {shell_words(requirement)}"
        self.account.leave_out(statement, reason, step)

    def _torch_of_wheel(self, requirement: PipRequirement) -> str:
        """The torch that a wheel's file name is for, if it is not the one of the environment."""
        version = unquote(url_filename(requirement.source))
        named = re.search(r"\+\w*?(?:torch|pt)(\d\.?\d+)", version)
        if named is None or "torch" not in self.content:
            return ""
        minor = named[1] if "." in named[1] else f"{named[1][0]}.{named[1][1:]}"
        return "" if minor in map(catalog.minor, self.releases) else minor

    def _contradicts(self, package: _Package) -> bool:
        """Whether an earlier statement requests another version of the same package."""
        exact = _EXACT.fullmatch(package.specifier.strip())
        for earlier in self.packages:
            if earlier is package:
                return False
            is_other = earlier.name != package.name or earlier.requirement is None
            if is_other or earlier.statement.kind == "constraint" or not exact:
                continue
            entry = self.account.entries.get(earlier.statement)
            if entry is None or entry.outcome == "left out" or not earlier.specifier:
                continue
            if not SpecifierSet(earlier.specifier).contains(exact[1], prereleases=True):
                self.account.contradict(package.statement, earlier.statement)
                return True
        return False

    def _take_constraint(self, package: _Package, requested: set[str]) -> None:
        statement = package.statement
        assert package.requirement is not None
        if package.name in requested:
            limit = replace(package.requirement, marker="", extras=())
            self._add("pip", statement, str(limit))
            return
        reason = "a constraint of a package that no line requests"
        step = f"provision add NAME {shell_words(package.requirement)}"
        self.account.leave_out(statement, reason, step)

    def _take_channel(self, statement: Statement) -> None:
        name = statement.value
        if name in _ANACONDA:
            reason = "Anaconda's channels need a license in many organizations"
            self.account.end(statement, "translated", became="channels: conda-forge", reason=reason)
        elif name == "nodefaults" or name in _BUILD_CHANNELS:
            self.account.end(statement, "taken", became="used where a build or a package needs it")
        elif name.startswith("pytorch-"):
            reason = "provision knows releases of PyTorch, and no nightly builds"
            self.account.leave_out(statement, reason, "provision matrix")
        else:
            self._add_channel(name)
            self.account.end(statement, "taken", became=f"channels: {name}")

    def _add_channel(self, name: str) -> None:
        channels = self.content.setdefault("channels", [])
        if name not in channels:
            channels.append(name)

    def _take_index(self, statement: Statement) -> None:
        index = _TORCH_INDEX.search(statement.value)
        if index and (index[1] or (index[2] or "cu").startswith(("rocm", "xpu"))):
            reason = "provision knows PyTorch's releases for NVIDIA GPUs and CPUs"
            self.account.leave_out(statement, reason, "provision matrix")
        elif index:
            self.account.end(statement, "taken", became="provision finds PyTorch's wheels itself")
        elif statement.kind == "find-links" or statement.packages:
            key = "find_links" if statement.kind == "find-links" else "indexes"
            names = [name for name in statement.packages if name not in (*TORCH, *COMPANIONS)]
            text = f"{' '.join(names)} @ {statement.value}" if names else statement.value
            self._add(key, statement, text)
        else:
            reason = "an index for every package is a setting of pip's or uv's"
            step = f"pip config set global.extra-index-url {statement.value}"
            self.account.leave_out(statement, reason, step)

    def _take_platform(self, statement: Statement) -> None:
        if statement.value == self.platform:
            self.account.end(statement, "taken", became=f"platforms: {statement.value}")
        elif statement.value in PLATFORMS:
            step = f"provision lock NAME --platform {self.platform} --platform {statement.value}"
            reason = "one platform unless more are requested"
            self.account.leave_out(statement, reason, step)
        else:
            reason = "environments are for Linux"
            self.account.leave_out(statement, reason)


# Versions of torch.


def _torch_expression(package: _Package) -> str:
    """A version or range of torch in the words of spec.yml; empty if any is allowed."""
    text = package.specifier.replace(" ", "")
    exact = _EXACT.fullmatch(text)
    if exact:
        numbers = exact[1].split(".")
        return ".".join([*numbers, "0", "0"][: max(3, len(numbers))])
    prefix = re.fullmatch(r"(?:={1,2})?(\d+(?:\.\d+){0,2})(?:\.\*)?", text)
    if prefix:
        return prefix[1]
    return text.removeprefix("===").removeprefix("==") if text[:2] == "==" else text


@functools.cache
def _matching(expression: str) -> list[str]:
    """The releases that an expression means, oldest first."""
    versions: list[str] = []
    for alternative in expression.split("|"):
        try:
            text = re.fullmatch(r"={0,2}([\d.]+?)(?:\.\*)?", alternative)
            releases = catalog.matching_releases(text[1] if text else alternative)
        except (NoSuchBuild, InvalidSpec):
            continue
        versions += [release.version for release in releases]
    return [version for version in catalog.releases() if version in versions]


def _joined(clauses: Sequence[str], allowed: Sequence[str], table: Sequence[str]) -> str:
    """One expression for all of them. allowed: the releases that it means."""
    for clause in clauses:
        if re.fullmatch(r"\d+\.\d+\.\d+.*", clause):
            return clause
    if clauses and not any("|" in clause for clause in clauses):
        joined = (
            clauses[0]
            if len(set(clauses)) == 1
            else ",".join(
                clause if clause[0] in "<>!~=" else f"=={clause}.*"
                for clause in dict.fromkeys(clauses)
            )
        )
        if _matching(joined) == list(allowed) or not _matching(joined):
            return joined
    if list(allowed) == list(table):
        return ""
    return allowed[0] if len(allowed) == 1 else f">={allowed[0]},<={allowed[-1]}"


def _paired(package: _Package) -> list[str]:
    """The releases of torch that some source pairs with such a version of a companion."""
    versions = []
    for release in catalog.releases().values():
        for source in sources.REGISTRY:
            for companion in source.companions(release):
                if companion.name == package.name and _contains(package, companion.version):
                    versions.append(release.version)
    return versions


def _contains(package: _Package, version: str | None) -> bool:
    text = package.specifier
    if version is None or not text:
        return False
    if package.requirement is None:
        clauses = [clause if clause[0] in "<>!=~" else f"=={clause}" for clause in text.split(",")]
        text = ",".join(clauses) if text else ""
    try:
        return SpecifierSet(text).contains(version, prereleases=True)
    except InvalidSpecifier:
        return False


def _pins_torch(package: _Package, allowed: Sequence[str]) -> bool:
    """Whether a companion requires one release of torch; later releases of torchaudio do not."""
    releases = [catalog.releases()[version] for version in allowed if version in catalog.releases()]
    return package.name != "torchaudio" or any(
        release.torchaudio_pins_torch for release in releases
    )


# CUDA.


def _cuda_of_tag(tag: str) -> str:
    """12.1 of cu121."""
    return CPU if tag == CPU else f"{tag[2:4]}.{tag[4:]}"


def _fitting_cudas(specifier: str, candidates: Sequence[str]) -> list[str]:
    if specifier == CPU:
        return [CPU] if CPU in candidates else []
    cudas = [cuda for cuda in dict.fromkeys(candidates) if cuda != CPU]
    return allowed_minors(specifier, cudas) if specifier else cudas


# Texts.


def _without_stars(version: str) -> str:
    """conda's `>=1.2.*` as `>=1.2`."""
    return re.sub(r"((?:>=|<=|>|<|~=)[\d.]+?)\.\*", r"\1", version)


def _conda_text(package: _Package) -> str:
    """A conda requirement as spec.yml has it: with a build only if that is a pattern or a word."""
    version = package.specifier
    if re.fullmatch(r"[\d.]+\.\*", version):
        version = f"={version[:-2]}"
    if package.build and re.fullmatch(r"\*?[A-Za-z]+\w*\*?|\*.*", package.build):
        is_hash = re.search(r"\d", package.build) and "*" not in package.build
        if not is_hash:
            return f"{package.name}={version.lstrip('=') or '*'}={package.build}"
    if package.build and version.startswith("=="):
        version = version[1:]
    return f"{package.name}{version}"


def _wheel_python(requirement: PipRequirement | None) -> str:
    """The only Python that a wheel's file name is for; empty for any other requirement."""
    if requirement is None or not requirement.source.partition("#")[0].endswith(".whl"):
        return ""
    try:
        tags = parse_wheel_filename(unquote(url_filename(requirement.source)))[3]
    except InvalidWheelFilename:
        return ""
    minors = {
        f"3.{tag.interpreter[3:]}" if re.fullmatch(r"cp3\d+", tag.interpreter) else ""
        for tag in tags
    }
    is_stable = any(tag.abi in ("abi3", "none") for tag in tags)
    return minors.pop() if len(minors) == 1 and not is_stable else ""


def _minor(python: str) -> int:
    return catalog.version_key(python)[1]
