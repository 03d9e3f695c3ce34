"""The CUDA that a project's files state: by a version, an index, a build string, a companion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from provision import catalog, sources
from provision.core.statements import Statement
from provision.project_files.decision import (
    COMPANIONS,
    CPU,
    TORCH,
    Narrowing,
    Package,
    Request,
)
from provision.project_files.rules import pattern, table
from provision.project_files.versions import allowed_minors, named_minor

# The weight of compilers and of labels of channels, which may be of another CUDA than torch.
WEAK = 3
_RUNTIME = "nvidia-cuda-runtime"


def statement_line(statement: Statement) -> str:
    """The line of a statement that the tables match."""
    kind = statement.kind.removeprefix("extra-")
    if kind in ("index", "find-links") and (not statement.packages or _names_torch(statement)):
        kind = f"torch-{kind}"
    return f"{kind} {statement.value}"


def _names_torch(statement: Statement) -> bool:
    return not {*TORCH, *COMPANIONS}.isdisjoint(statement.packages)


def decide_cuda(request: Request, torch: Sequence[Package]) -> dict[Statement, str]:
    """Set CUDA, or the versions that the files leave open: what the statements about it became.
    torch: with its companions."""
    choices, content = request.choices, request.content
    universe = list(catalog.toolkits())
    builds = _built_cudas(request, universe)
    chosen = CPU if choices.cpu else choices.cuda
    narrowing = Narrowing(request, [chosen] if chosen else [CPU, *universe], is_open=not chosen)
    used: dict[Statement, str] = {}
    for weight, statement, specifier in _stated(request):
        named = specifier if specifier == CPU else named_minor(specifier)
        candidates = [named, *narrowing.allowed] if narrowing.is_open else narrowing.allowed
        try:
            fitting = _fitting(specifier, candidates)
        except ValueError as error:
            request.leave_out(statement, str(error))
            continue
        option = ""
        if weight < WEAK:
            newest = named or "".join(_fitting(specifier, universe)[-1:])
            option = "--cpu" if specifier == CPU else f"--cuda {newest}"
        elif narrowing.decisive:
            is_one = len(narrowing.allowed) == 1
            if not set(fitting) & {*builds, *(narrowing.allowed if is_one else ())}:
                continue  # a compiler of another CUDA than that of torch
        if narrowing.take(statement, fitting, option, f"CUDA `{specifier}`"):
            used.setdefault(statement, specifier)
    became = ""
    cudas = [cuda for cuda in narrowing.allowed if cuda != CPU]
    majors = {re.sub(r"[=\s*]|\.(?=\*|$)", "", text) for text in used.values() if text}
    if not chosen and not used:
        _refuse_foreign_builds(request)
    elif not cudas:
        content["cpu"], became = True, "cpu: true"
    elif len(cudas) == 1 or (len(majors) == 1 and min(majors).isdigit()):
        content["cuda"] = cudas[0] if len(cudas) == 1 else min(majors)
        became = f'cuda: "{content["cuda"]}"'
    else:
        newest_first = sorted(cudas, key=catalog.version_key, reverse=True)
        request.cudas = tuple(_built_cudas(request, cudas) or newest_first)
        became = f'cuda: "{request.cudas[0]}"'
    requests = {package.statement for package in torch}
    for statement in used:
        is_part = statement.value.startswith("nvidia-") and not statement.value.startswith(_RUNTIME)
        # A page of wheels for this CUDA is taken as such.
        is_index = pattern("@torch_index@").fullmatch(statement_line(statement))
        is_page = statement.kind == "find-links" and not is_index
        if not is_part and not is_page and statement not in {*requests, *request.ended}:
            is_nightly = is_index and re.search("/whl/(?:nightly|test)/", statement.value)
            reason = (
                "provision takes releases of PyTorch, and no nightly builds" if is_nightly else ""
            )
            request.end(statement, "translated", became=became, reason=reason)
    return dict.fromkeys(used, became)


def _refuse_foreign_builds(request: Request) -> None:
    """Note that the only build which the files state is for other GPUs than NVIDIA's."""
    foreign = pattern("pip (?:@foreign_builds@) .*|(?=.*/whl/(?:rocm|xpu))@torch_index@")
    for statement, line in _lines(request):
        if foreign.fullmatch(line):
            request.contradictions.append(
                f"{statement.file}:{statement.line}: `{statement.text}` is of a build for other GPUs "
                "than NVIDIA's, which provision does not have."
            )
            return


def _lines(request: Request) -> Iterator[tuple[Statement, str]]:
    """The lines that the tables match, of statements and of packages."""
    for package in request.packages:
        yield package.statement, str(package)
        yield package.statement, f"channel {package.channel}"
    for statement in request.statements:
        yield statement, statement_line(statement)


def _stated(request: Request) -> list[tuple[int, Statement, str]]:
    """What is stated about CUDA: what leads first, and the weakest of all files last."""
    stated: list[tuple[int, Statement, str]] = []
    # An index for every package does not say where torch comes from if another one is named for it.
    is_named = any(map(_names_torch, request.statements))
    for statement, line in _lines(request):
        is_general = is_named and statement.kind.endswith("index") and not statement.packages
        for rule in table("cuda"):
            match = pattern(rule["line"]).fullmatch(line)
            if match:
                weight = WEAK if is_general else rule["weight"]
                stated.append((weight, statement, catalog.cuda_of_tag(match.expand(rule["cuda"]))))
                break
    files = list(dict.fromkeys(statement.file for statement in request.statements))

    def order(item: tuple[int, Statement, str]) -> tuple[bool, int, int, int]:
        weight, statement, _ = item
        position = request.statements.index(statement)
        return (weight == WEAK, files.index(statement.file), weight, position)

    return sorted(stated, key=order)


def _built_cudas(request: Request, allowed: Sequence[str]) -> list[str]:
    """Of the newest release that has a build for one of some CUDA versions, and for the Python:
    the versions, newest first."""
    for version in reversed(request.releases):
        cudas: dict[str, None] = {}
        for candidate in sources.candidates_of(version) if version in catalog.releases() else ():
            build = candidate.build
            pythons = build and (build.python or build.python_seen)
            if build and build.cuda in allowed and (not pythons or request.python in pythons):
                cudas[build.cuda] = None
        if cudas:
            return list(cudas)
    return []


def _fitting(specifier: str, candidates: Iterable[str]) -> list[str]:
    """The CUDA versions that a specifier allows. `auto` stands for any of them."""
    cudas = [
        cuda for cuda in dict.fromkeys(candidates) if cuda and (cuda == CPU) == (specifier == CPU)
    ]
    if specifier in ("", CPU) or cudas == ["auto"]:
        return cudas
    return allowed_minors(specifier, cudas)
