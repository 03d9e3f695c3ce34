"""git: a clone of a repository, and whether its origin has gone on. The user's own `git`, which
never asks: neither for a password nor about a host key.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.core import process
from provision.core.dataclass import frozen
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.system_errors import tool_without_space

REPLY_TIMEOUT_S = 30.0
CLONE_TIMEOUT_S = 600.0
CONNECT_S = 10
# git gives up on a server that sends fewer bytes a second for this long (git-config(1),
# http.lowSpeedLimit).
SLOW_BYTES, SLOW_S = 1000, 20
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[^/\s:]+@[^/\s:]+:|[A-Za-z0-9._-]+:(?!/?/)[^\\]")
_VARIABLES = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",  # set and empty, it also keeps git from asking through a window
    # Not a master for later connections: see SSH_OPTIONS in provision/adapters/clustershell.py.
    "GIT_SSH_COMMAND": f"ssh -oBatchMode=yes -oControlMaster=no -oConnectTimeout={CONNECT_S}",
    "GIT_HTTP_LOW_SPEED_LIMIT": str(SLOW_BYTES),
    "GIT_HTTP_LOW_SPEED_TIME": str(SLOW_S),
    "LC_ALL": "C",
}
_SETTINGS = ("core.quotePath=true", "status.relativePaths=true", "color.ui=false")
_PLAIN_OUTPUT = [part for setting in _SETTINGS for part in ("-c", setting)]
# What git and its ssh say (git 2.20 to 2.50): of a host or a repository that cannot be reached, and
# of an address where there is none.
_UNREACHABLE = re.compile(
    r"Host key verification failed|No \S+ host key is known|could not read (Username|Password)"
    r"|terminal prompts disabled|Authentication failed|Permission denied"
    r"|HTTP Basic: Access denied|returned error: 40[13]"
    r"|Could not resolve host|Could not connect|Connection (refused|timed out|reset)"
    r"|Failed to connect|Operation too slow|No route to host"
    r"|Network is unreachable|early EOF|hung up",
    re.I,
)
_NO_REPOSITORY = re.compile(
    r"does not appear to be a git repository|repository .* not found|does not exist"
    r"|returned error: 404|not valid: is this a git repository",
    re.I,
)


def is_url(text: str) -> bool:
    """Whether git would take this for an address rather than a folder."""
    return _URL.match(text) is not None and not Path(text).exists()


def clone(url: str, folder: Path) -> None:
    """Clone the newest commit into a folder that does not exist yet.

    After an error the folder does not exist either: git removes it, also when it is interrupted.
    """
    _git(["clone", "--quiet", "--depth", "1", "--", url, str(folder)], url, CLONE_TIMEOUT_S)


def head(folder: Path) -> str:
    """The commit that is checked out."""
    return _ask(folder, "rev-parse", "HEAD").strip()


def remote_head(folder: Path, url: str) -> str:
    """The commit of the origin's branch that is checked out here. Writes nothing."""
    branch = _ask(folder, "symbolic-ref", "--quiet", "--short", "HEAD").strip()
    commit = _git(["ls-remote", "--", url, f"refs/heads/{branch}"], url).split()
    if not commit:
        raise InvalidSpec(f"{url} no longer has a branch `{branch}`.")
    return commit[0]


@frozen
class WorkTree:
    """What git says of a folder of a work tree; all paths are relative to the folder.

    committed: when, in seconds since 1970. files: that are tracked and there. changed: that differ
    from the commit, or whose changes git was told not to look for. untracked: files and folders,
    without ignored ones.
    """

    commit: str
    committed: int
    files: tuple[str, ...]
    changed: tuple[str, ...]
    untracked: tuple[str, ...]


def work_tree(folder: Path) -> WorkTree:
    """Raises InvalidSpec if the folder is not in a work tree with a commit, or has a submodule that is
    not checked out."""
    try:
        # Each option that follows undoes a setting of the user's, which would hide something.
        log = _ask(folder, "log", "-1", "--no-show-signature", "--format=%H %ct")
        options = ["--short", "--no-branch", "--no-renames", "--untracked-files=normal"]
        rows = _ask(folder, "status", *options, "--ignore-submodules=none", ".").splitlines()
    except ToolFailed as error:
        raise InvalidSpec(
            f"{folder} is not in a git repository with a commit, so it is unknown which of its files "
            f"are code: {error.tail.strip()}.",
            advice="`git init`, `git add` the code and `git commit` it; or name another folder.",
        ) from error
    files = []
    changed: list[str] = []
    untracked: list[str] = []
    for row in rows:
        kind = untracked if row.startswith("??") else changed
        kind.append(os.path.normpath(_path(row[3:])))
    for path, is_compared in _tracked(folder):
        file = folder / path
        is_there = file.is_symlink() or file.is_file()
        if is_there:
            files.append(path)
        if not (is_there and is_compared):
            changed.append(path)
    commit, committed = log.split()
    return WorkTree(
        commit=commit,
        committed=int(committed),
        files=tuple(dict.fromkeys(files)),  # one in conflict has several rows
        changed=tuple(dict.fromkeys(changed)),
        untracked=tuple(untracked),
    )


def _tracked(folder: Path) -> Iterator[tuple[str, bool]]:
    """The tracked files of a folder and its submodules, and whether git looks for changes of them: not
    where it was told to assume none, or leaves the file out of the work tree."""
    for row in _ask(folder, "ls-files", "-v", "--stage").splitlines():
        about, _, name = row.partition("\t")
        path = _path(name)
        if " 160000 " not in about:
            # H: cached, M: in conflict; not h: assume-unchanged, S: skip-worktree.
            yield path, about[0] in "HM"
            continue
        # `git ls-files --recurse-submodules` leaves one that is not checked out away.
        if not (folder / path / ".git").exists():
            raise InvalidSpec(
                f"{folder / path} is a submodule that is not checked out.",
                advice="Run `git submodule update --init` there.",
            )
        for file, is_compared in _tracked(folder / path):
            yield f"{path}/{file}", is_compared


def _ask(folder: Path, *arguments: str) -> str:
    """What git says of a folder, its names in C's quotes where they are not plain."""
    return _git([*_PLAIN_OUTPUT, "-C", str(folder), *arguments], str(folder))


def _path(text: str) -> str:
    if not text.startswith('"'):
        return text
    return os.fsdecode(text[1:-1].encode().decode("unicode_escape").encode("latin-1"))


def fast_forward(folder: Path, url: str) -> None:
    """Bring a clone up to its origin's state. Raises IntegrityError if both have changed."""
    _git(["-C", str(folder), "fetch", "--quiet", "--depth", "1"], url, CLONE_TIMEOUT_S)
    changed = _ask(folder, "status", "--porcelain", "--untracked-files=no")
    if changed.strip():
        files = ", ".join(line[3:] for line in changed.splitlines()[:3])
        raise IntegrityError(
            f"{folder} was changed ({files}), and {url} has too.",
            advice="Bring your change to the lab, or undo it: "
            f"git -C {shlex.quote(str(folder))} checkout .",
        )
    # A clone of one commit has no history in which the new one could be ahead.
    _git(["-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD"], url)


def _git(arguments: Sequence[str], url: str, timeout_s: float = REPLY_TIMEOUT_S) -> str:
    """What git printed. url: what the error names."""
    try:
        # The user's whole environment: ssh agents, Kerberos, certificates, proxies.
        variables = {**os.environ, **_VARIABLES}
        if "GIT_SSH_COMMAND" in os.environ:
            variables["GIT_SSH_COMMAND"] = os.environ["GIT_SSH_COMMAND"]
        # A lab's repository says which programs run: nobody else may write to its clone.
        return process.run(
            ["git", *arguments], env=variables, timeout_s=timeout_s, owner_writes_only=True
        ).stdout
    except ToolMissing as error:
        raise ToolMissing(
            "There is no `git` on this machine.",
            advice="Install it (or `module load git`), or name a folder with the lab's lab.yml.",
        ) from error
    except TimedOut as error:
        raise Unreachable(
            f"{url} did not answer within {timeout_s:.0f} s.", advice="Try again later."
        ) from error
    except ToolFailed as error:
        raise _error(error, url) from error


def _error(error: ToolFailed, repository: str) -> ProvisionError:
    text = error.tail
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    reason = (telling or lines or ["git printed nothing"])[0]
    if no_space := tool_without_space(text):
        return no_space
    if _NO_REPOSITORY.search(text) and not _UNREACHABLE.search(text):
        return InvalidSpec(
            f"{repository} is not a git repository that you can read ({reason}).",
            advice="Check the address. Hosts also say so of private repositories.",
            details=text,
        )
    if _UNREACHABLE.search(text) or "unable to access" in text:
        return Unreachable(
            f"{repository} cannot be read ({reason}).",
            advice="`git ls-remote` with the address must work without a question: the host's key in "
            "~/.ssh/known_hosts; your public key there, or a token with a credential helper (`git help "
            "credentials`).",
            details=text,
        )
    return error
