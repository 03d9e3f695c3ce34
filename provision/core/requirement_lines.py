"""pip's requirement text -> what each line of it states.

The one parser of such text: of `--pip`, of `add`, of `pip` in spec.yml, and of every file that holds
such lines. A line means what it means to pip; versions, markers and extras are read by `packaging`.
Source: https://pip.pypa.io/en/stable/reference/requirements-file-format/

Nothing is dropped in silence: each line becomes one entry or more, and one that is not understood
says why.
"""

from __future__ import annotations

import getopt
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement

from provision.core.credentials import (
    credential_problem,
    public_request,
    without_credentials,
    without_login,
)
from provision.core.package_names import parse_distribution, url_filename
from provision.core.requirement_urls import GIT
from provision.core.statements import PipRequirement, Statement

ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")


class _NotUnderstood(ValueError):
    """Why a text is not a requirement, and what to write instead."""

    def __init__(self, reason: str, next_step: str = "") -> None:
        super().__init__(reason)
        self.next_step = next_step


_COMMENT = r"(?:^|\s+)#.*$"
_OPTIONS = r"(?:^|\s)-"
_VARIABLE = r"\$\{[A-Z0-9_]+\}"
_EXTRAS = r"(?:\s*\[(?P<extras>[\w\s.,-]*)\])?"
_NAME = rf"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?){_EXTRAS}"
_NAMED = rf"{_NAME}\s*@\s*(?P<source>.+)"
_EGG = r"(?<=[#&])egg=([^&]*)&?"
_LOCATION = rf"(?P<source>[^\[\]]+?){_EXTRAS}"
_MARKED = r"(?P<text>.*?)(?:\s+;\s*|;\s+)(?P<marker>.+)"
_SCP = r"(?:git\+)?(?P<user>[\w.-]+)@(?P<host>[\w.-]+):(?P<path>[^/\d\s][^\s]*)"
_PATH = r"[.~]|file:|.*[/\\]"
_REPOSITORY = r"git\+|git://|ssh://|https?://[^#]*\.git(@[^/#]+)?(#|$)"
_WINDOWS = r"[A-Za-z]:[\\/]|\\\\|file:///[A-Za-z]:"
# Where conda's packages were built, as `pip freeze` prints it in an environment of conda.
_CONDA_BUILD = (
    r"file:///(?:[^#]*/)?(?:croot|conda-bld|feedstock_root|build_artifacts|bld|rattler-build[^/]*)/"
    r"|file:///(?:tmp/build|work|[A-Za-z]:)/|file:///[^#]*/(?:ci(?:_py\w*)?/|work(?:$|/dist/|[#]))"
)
_WHEEL_VERSION = r"/[^/-]+-([^/-]+)-[^/]+\.whl"
# What people write who mean something else: what it is, and what to write instead.
_OTHERS = (
    (
        r"([A-Za-z0-9._-]+)=([\d.*]+)(=\S+)?",
        "it is conda's way to write a requirement",
        r"write `\1==\2`",
    ),
    (r"(\S+\.(?:txt|in))", "it is a file's name, not a package's", r"write `-r \1`"),
    (r"(\d+(?:\.\d+)*)", "it is a version, not a package", r"write `PACKAGE==\1`"),
)
_STAR = r"((?:>=|~=|<)\s*\d+(?:\.\d+)*)\.\*"
_NO_COMMA = r"((?:[<>!~]=?|==)\s*\d[\w.]*)\s*(?=[<>=!~])"
# A login that pip would take from variables.
_VARIABLE_LOGIN = r"(?<=://)[^/@\s]*\$\{[A-Z0-9_]+\}[^/@\s]*@"


def parse_lines(text: str, file: str = "", line: int | None = None) -> list[Statement]:
    """What the lines of a text state, in order. file: its name, for the entries. line: of the file,
    where that holds the text as one of its values."""
    entries: list[Statement] = []
    for number, content in _logical_lines(text):
        written, logins = re.subn(_VARIABLE_LOGIN, "", content)
        entry = Statement(
            file=file,
            line=line or number,
            text=public_request(content),
            kind="unknown",
            reason="its login was left out: ~/.netrc holds logins" * logins,
        )
        try:
            entries += _line_entries(written, entry)
        except _NotUnderstood as error:
            entries.append(replace(entry, reason=str(error), next_step=error.next_step))
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued ones joined, each with the number of its first."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not parts:
            first = number
        is_comment = line.lstrip().startswith("#")
        if line.rstrip().endswith("\\") and not is_comment:
            parts.append(line.rstrip()[:-1])
            continue
        parts.append(f" {line}" if is_comment else line)  # a comment ends what was continued
        joined = re.sub(_COMMENT, "", "".join(parts)).strip()
        parts = []
        if joined:
            yield first, joined


def _line_entries(line: str, entry: Statement) -> list[Statement]:
    """The entries of one logical line. Raises _NotUnderstood."""
    if variables := re.findall(_VARIABLE, line):
        raise _NotUnderstood(
            f"it holds the variable {variables[0]}, which pip would fill in",
            "write the value in its place",
        )
    start = re.search(_OPTIONS, line)
    end = start.start() if start else len(line)
    options, surplus = _options(line[end:])
    if options and surplus and surplus[0].startswith(";"):  # the marker of an editable
        name, value = options.pop()
        options.append((name, " ".join([value, *surplus])))
        surplus = []
    requirements = filter(None, [line[:end].strip(), " ".join(surplus)])
    entries = [_requirement_entry(text, entry) for text in requirements]
    names = [other.requirement.name for other in entries if other.requirement]
    for name, value in options:
        kind, reason = _pip_options()["long"][name]
        if kind == "pip":
            entries.append(_requirement_entry(value, entry, editable=True))
        elif kind == "ignored":
            name = name.rstrip("=")
            entries.append(replace(entry, kind="ignored", value=name, reason=reason))
        else:
            stated = replace(
                entry,
                kind=kind,
                value=without_credentials(value).replace("\\", "/"),
                packages=tuple(filter(None, names)),
                credential=credential_problem(value) or "",
            )
            entries.append(stated)
    return entries


@cache
def _pip_options() -> Any:
    """pip's options by their short and long names, in getopt's form: what each of the long ones
    states, and why it has no effect if it has none."""
    return json.loads(Path(__file__).with_name("pip_options.json").read_text(encoding="utf-8"))


def _options(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Options by their long names in getopt's form, with values, and what is no option. Raises
    _NotUnderstood."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    short, long = _pip_options().values()
    short_form = "".join(key[1] + ":" * name.endswith("=") for key, name in short.items())
    try:
        options, surplus = getopt.gnu_getopt(list(lexer), short_form, long)
    except (ValueError, getopt.GetoptError) as error:
        raise _NotUnderstood(f"pip's options in it are not understood: {error}") from error
    names = {**short, **{f"--{name.rstrip('=')}": name for name in long}}
    return [(names[option], value) for option, value in options], surplus


def _requirement_entry(text: str, entry: Statement, *, editable: bool = False) -> Statement:
    problem = credential_problem(text) or ""
    if problem and public_request(text) != without_login(text):
        raise _NotUnderstood(problem)  # a file that its token opens
    requirement, reason = _parse_requirement(public_request(text), editable=editable)
    return replace(
        entry,
        kind="pip",
        value=str(requirement),
        requirement=requirement,
        reason=reason or entry.reason,
        credential=problem,
    )


def _parse_requirement(text: str, *, editable: bool) -> tuple[PipRequirement, str]:
    """A requirement, and what was read otherwise than written. Raises _NotUnderstood."""
    marked = re.fullmatch(_MARKED, text)
    unmarked = marked["text"] if marked else text
    named = None if re.fullmatch(_SCP, unmarked) else re.fullmatch(_NAMED, unmarked)
    location = named["source"] if named else unmarked
    repository = _repository(location)
    if not (editable or repository or _is_location(location)):
        if named:
            raise _NotUnderstood(
                f"`{location}` is not an address", f"write `{named['name']}=={location}`"
            )
        return _index_requirement(text)
    if named and re.match(_CONDA_BUILD, location):
        wheel = re.search(_WHEEL_VERSION, unquote(location))
        requirement = PipRequirement(name=named["name"], specifier=f"=={wheel[1]}" if wheel else "")
        return requirement, "its address is of the machine that built it"
    if re.match(_WINDOWS, location):
        raise _NotUnderstood(f"`{location}` is a path of a Windows machine", "name one of this one")
    source = repository or location.strip()
    egg = re.search(_EGG, source)
    match = re.fullmatch(_LOCATION, re.sub(_EGG, "", source).rstrip("#&"))
    if match is None:
        raise _NotUnderstood(f"`{location}` is neither an address nor a path")
    source, name, extras = match["source"], "", match["extras"]
    if stated := named or (egg and re.fullmatch(_NAME, unquote(egg[1]))):
        name, extras = stated["name"], stated["extras"]
    if "://" not in source:
        source = source.replace("\\", "/")
    _check_source(source, editable=editable)
    requirement = PipRequirement(
        name=name or _archive_name(source),
        extras=_split_extras(extras),
        source=source,
        marker=_marker(marked["marker"]) if marked else "",
        editable=editable and not source.startswith(GIT),
    )
    reason = ""
    if repository not in ("", location):
        reason = f"read as `{requirement}`"
    elif repository and editable:
        reason = "installed as a package; clone it and name its folder with -e to edit it"
    return requirement, reason


def _index_requirement(text: str) -> tuple[PipRequirement, str]:
    """A package of an index, by PEP 508, and what was read otherwise than written."""
    reason = ""
    for pattern, problem, advice in _OTHERS:
        if other := re.fullmatch(pattern, text):
            raise _NotUnderstood(problem, other.expand(advice))
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        # As earlier releases of pip read them.
        mended = re.sub(_STAR, r"\1", re.sub(_NO_COMMA, r"\1,", text))
        try:
            requirement = Requirement(mended)
        except InvalidRequirement:
            problem = str(error).splitlines()[0]
            raise _NotUnderstood(f"it is not a requirement of pip: {problem}") from error
        text, reason = mended, f"read as `{mended}`"
    specifier = re.sub(rf"^[\w.-]+{_EXTRAS}|[\s()]", "", text.partition(";")[0].strip())
    result = PipRequirement(
        name=requirement.name,
        extras=tuple(sorted(requirement.extras)),
        specifier=specifier.rstrip(","),
        marker=text.partition(";")[2].strip() if requirement.marker else "",
    )
    return result, reason


def _repository(location: str) -> str:
    """The address of a git repository as `git+...`; empty for any other location."""
    if scp := re.fullmatch(_SCP, location):
        return scp.expand(r"git+ssh://\g<user>@\g<host>/\g<path>")
    return GIT + location.removeprefix(GIT) if re.match(_REPOSITORY, location) else ""


def _is_location(text: str) -> bool:
    """Whether a text is an address or a path, not the name of a package."""
    path = text.partition("[")[0].strip()
    return bool(re.match(_PATH, path)) or path.lower().endswith(ARCHIVES)


def _check_source(source: str, *, editable: bool) -> None:
    """Raise _NotUnderstood for an address that holds no package that we can read."""
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme.startswith(("hg", "svn", "bzr")):
        raise _NotUnderstood(
            f"it is a repository of {scheme.partition('+')[0]}, and uv reads those of git",
            "clone it, and name its folder",
        )
    if editable and scheme not in ("", "file") and not source.startswith(GIT):
        raise _NotUnderstood("an editable is a folder or a git repository", "leave -e out")
    if scheme in ("http", "https") and not url_filename(source).lower().endswith(ARCHIVES):
        raise _NotUnderstood(
            "the address names no wheel and no archive", f"for a repository, write `{GIT}{source}`"
        )


def _archive_name(source: str) -> str:
    """The package of a wheel or source archive by its file's name; empty if that does not say it."""
    named = parse_distribution(Path(unquote(url_filename(source) or source)).name)
    return named.name if named else ""


def _split_extras(text: str | None) -> tuple[str, ...]:
    return tuple(sorted(part.strip() for part in (text or "").split(",") if part.strip()))


def _marker(text: str) -> str:
    try:
        Marker(text)
    except InvalidMarker as error:
        raise _NotUnderstood(f"its marker is not one: {str(error).splitlines()[0]}") from error
    return text.strip()
