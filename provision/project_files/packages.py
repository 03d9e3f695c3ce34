"""Everything but torch, CUDA and Python: packages, channels, indexes and platforms."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision import catalog
from provision.core.credentials import public_request
from provision.core.package_names import url_filename
from provision.core.platforms import PLATFORM, PLATFORMS
from provision.core.statements import PipRequirement, Statement
from provision.project_files.account import Outcome
from provision.project_files.cuda_choice import statement_line
from provision.project_files.decision import COMPANIONS, TORCH, Package, Request
from provision.project_files.requirements import shell_words
from provision.project_files.rules import pattern, table

# An index in the place of the usual one, as pip, uv and Pipenv write it.
_REPLACES_INDEX = re.compile(r"(-i|--index-url|index-url|index_url)\b")


def take_others(request: Request) -> None:
    """Put everything that has no entry yet into spec.yml, or leave it out."""
    for package in request.packages:
        statement, requirement = package.statement, package.requirement
        is_toolkit = requirement is None and pattern("@toolkits@").fullmatch(package.name)
        if is_toolkit and not statement.exported:
            _keep_toolkit(request, package)
        if statement in request.ended or statement.kind == "constraint":
            continue
        if _by_rule(request, statement, str(package)):
            continue
        if requirement is None:
            _take_conda(request, package)
        else:
            _take_pip(request, package, replace(requirement, marker=""))
    requested = {
        package.name for package in request.packages if package.statement.kind != "constraint"
    }
    for package in request.packages:
        if package.statement not in request.ended and package.requirement:
            _take_constraint(request, package.statement, package.requirement, requested)
    for statement in request.statements:
        if statement in request.ended or _by_rule(request, statement, statement_line(statement)):
            continue
        if statement.kind == "name":
            request.name = request.name or statement.value
            request.end(statement, "taken", became=f"name: {request.name}")
        elif statement.kind == "channel":
            _add_channel(request, statement.value)
            request.end(statement, "taken", became=f"channels: {statement.value}")
        elif statement.kind in ("index", "extra-index", "find-links"):
            _take_index(request, statement)
        elif statement.kind == "platform":
            _take_platform(request, statement)
        else:
            request.leave_out(statement)
    if "channels" in request.content:
        _add_channel(request, "conda-forge")


def _by_rule(request: Request, statement: Statement, line: str) -> bool:
    """Note what a rule says of a line, if there is one."""
    for rule in table("lines"):
        match = pattern(rule["line"]).fullmatch(line)
        if match:
            request.end(
                statement,
                rule.get("outcome", "left out"),
                became=rule.get("became", ""),
                reason=match.expand(rule.get("reason", "")),
                next_step=match.expand(rule.get("step", "")),
            )
            return True
    return False


def _keep_toolkit(request: Request, package: Package) -> None:
    """A CUDA compiler stays requested, from its channel, besides the CUDA that it states."""
    stated = [statement.value for statement in request.statements if statement.kind == "channel"]
    channels = [name for name in stated if pattern("@label@").fullmatch(name)]
    if package.channel:
        channels = [package.channel]
    elif "nvidia" in stated and not package.name.startswith("cuda-nvcc"):
        channels = channels or ["nvidia"]  # conda-forge has cuda-nvcc of every release
    for name in channels:
        _add_channel(request, name)
    text = _conda_text(package)
    request.content.setdefault("conda", []).append(text)
    entry = request.ended.get(package.statement)
    became = f"{entry.became}, conda: {text}" if entry else f"conda: {text}"
    request.end(package.statement, "translated", became=became, reason="for compiling")


def _take_conda(request: Request, package: Package) -> None:
    text = _conda_text(package)
    became = f"conda: {text}"
    is_extra = not pattern("|@build_channels@|@anaconda@").fullmatch(package.channel)
    if is_extra:
        _add_channel(request, public_request(package.channel))
        became += f", channels: {package.channel}"
    request.content.setdefault("conda", []).append(text)
    has_build = package.build in text
    reason = "" if has_build else "its build string fits one environment"
    outcome: Outcome = "taken" if has_build and not is_extra else "translated"
    request.end(package.statement, outcome, became=became, reason=reason)


def _take_pip(request: Request, package: Package, requirement: PipRequirement) -> None:
    statement, text = package.statement, str(requirement)
    if requirement.is_path:
        text = request.located(requirement) if request.located else ""
        if not text:
            reason = "a wheel of it goes next to spec.yml; building one runs its code"
            step = f"provision add NAME {shell_words(requirement)}"
            request.leave_out(statement, reason, step)
            return
    release = _torch_of_wheel(request, requirement)
    build = "cpu" if "cpu" in request.content else request.content.get("cuda")
    if package.local and build and catalog.cuda_of_tag(package.local[1:]) != build:
        step = f"provision add NAME {shlex.quote(package.name + package.specifier)}"
        request.leave_out(statement, f"its build {package.local} is of another CUDA", step)
    elif release:
        reason = f"its file name is for torch {release}"
        step = f"name the wheel for torch {request.releases[-1]} instead"
        request.leave_out(statement, reason, step)
    else:
        request.add("pip", statement, text)


def _torch_of_wheel(request: Request, requirement: PipRequirement) -> str:
    """The torch that a wheel's file name is for, if it is not the one of the environment: a wheel's
    own metadata does not say it, so no solver refuses it."""
    filename = unquote(url_filename(requirement.source))
    named = re.search(r"\+\w*?(?:torch|pt)(\d)\.?(\d+)", filename)
    if named is None or "torch" not in request.content:
        return ""
    minor = f"{named[1]}.{named[2]}"
    return "" if minor in map(catalog.minor, request.releases) else minor


def _take_constraint(
    request: Request,
    statement: Statement,
    requirement: PipRequirement,
    requested: set[str],
) -> None:
    if canonicalize_name(requirement.name) in requested:
        limit = replace(requirement, marker="", extras=())
        request.add("pip", statement, str(limit))
        return
    step = f"provision add NAME {shell_words(requirement)}"
    request.leave_out(statement, "a constraint of a package that no line requests", step)


def _add_channel(request: Request, name: str) -> None:
    channels = request.content.setdefault("channels", [])
    if name not in channels:
        channels.append(name)


def _take_index(request: Request, statement: Statement) -> None:
    address = statement.value
    names = [name for name in statement.packages if name not in (*TORCH, *COMPANIONS)]
    if statement.kind != "find-links" and not names:
        reason = "an index for every package, or for torch, is a setting of pip's or uv's"
        setting = "index-url" if _REPLACES_INDEX.match(statement.text) else "extra-index-url"
        step = f"pip config set global.{setting} {address}"
        request.leave_out(statement, reason, step)
        return
    key = "find_links" if statement.kind == "find-links" else "indexes"
    text = f"{' '.join(names)} @ {address}" if names else address
    request.add(key, statement, text)


def _take_platform(request: Request, statement: Statement) -> None:
    name = statement.value
    if name == PLATFORM:
        request.end(statement, "taken", became=f"platforms: {name}")
    elif name in PLATFORMS:
        step = f"provision lock NAME --platform {PLATFORM} --platform {name}"
        request.leave_out(statement, "one platform unless more are requested", step)
    else:
        request.leave_out(statement, "environments are for Linux")


def _conda_text(package: Package) -> str:
    """A conda requirement as spec.yml has it: with a build only if that is a pattern or a word."""
    version = re.sub(r"^([\d.]+)\.\*$", r"=\1", package.specifier)
    is_hash = re.search(r"\d", package.build) and "*" not in package.build
    if re.fullmatch(r"\*?[A-Za-z]+\w*\*?|\*.*", package.build) and not is_hash:
        return f"{package.name}={version.lstrip('=') or '*'}={package.build}"
    if package.build:
        version = version.replace("==", "=", 1)
    return f"{package.name}{version}"
