"""Where `provision` begins, and how `provision run NAME -- COMMAND` and completion cost little more
than Python.

A run that had nothing to say leaves a record: what it put around the command, and all that decided
about it (`cli/recorded.py`). While none of that has changed, the next run becomes its command
here, and imports nothing. Whatever is not as recorded, the command line decides: `main`.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
from binascii import crc32

RUNS = "runs"  # in the cache
SHELLS = ("bash", "zsh", "fish")  # that complete
START = dict(os.environ)  # as it was before anything changed it
# Of these, and of all whose name begins so, depends where an environment is.
VARIABLES = ("PROVISION_", "XDG_", "HOME", "USER", "LOGNAME", "LNAME", "TMPDIR", "UV_CACHE_DIR")
RANK_LAUNCHERS = ("torchrun", "accelerate", "fabric", "lightning", "torch.distributed")

# `typing` itself would take half of the time that Python takes to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

Identity = tuple[int, ...]


def main() -> None:
    """The `provision` command. Ends the process itself."""
    shell, _, instruction = START.get("_PROVISION_COMPLETE", "").partition("_")
    if instruction == "complete" and shell in SHELLS:
        from provision.cli import completion

        completion.main(shell)
        return
    command_of_run(sys.argv[1:])
    from provision.cli.main import main

    main()


def command_of_run(arguments: list[str]) -> None:
    """Become the command of `run NAME [--] COMMAND...` if a record of this environment is still true;
    else return, with nothing changed."""
    if len(arguments) < 3 or arguments[0] != "run" or None in (sys.stdin, sys.stdout, sys.stderr):
        return
    name, *command = arguments[1:]
    if command[0] == "--":
        del command[0]
    elif command[0].startswith("-"):  # an option of `run`
        return
    # Ranks are started in a process that watches them.
    if name.startswith("-") or not command or "PATH" not in START or starts_ranks(command):
        return
    record = read_record(name)
    if record is None:
        return
    argv, path, variables, dropped = record
    environment = {key: START[key] for key in START if key not in dropped}
    environment.update(variables, PATH=f"{path}:{START['PATH']}")

    import signal

    # Python ignores these two, and a program that is started so would ignore them too.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        os.execvpe([*argv, *command][0], [*argv, *command], environment)
    except OSError:  # `main` says why there is no such program
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def starts_ranks(command: Sequence[str]) -> bool:
    """Whether a command may start ranks; verbs/run/run.py says of which it is certain."""
    return any(launcher in " ".join(command[:3]) for launcher in RANK_LAUNCHERS)


def key_of(name: str) -> tuple[Any, ...]:
    """What a record is of, besides files."""
    variables = sorted(pair for pair in START.items() if pair[0].startswith(VARIABLES))
    return (sys.version, os.getuid(), os.getcwd(), name, *variables)  # noqa: PTH109


def record_file(key: tuple[Any, ...]) -> str:
    """The file of a record, wherever settings put the cache: it is read before they are. Keys may
    share one: it holds its key."""
    cache = START.get("PROVISION_CACHE")
    if not cache:
        cache = START.get("XDG_CACHE_HOME") or f"{START.get('HOME', '')}/.cache"
        cache += "/provision"
    return f"{cache}/{RUNS}/{crc32(marshal.dumps(key, 2)):08x}"


def identity(path: str, is_listed: bool) -> Identity | None:
    """What changes if a file does, or, of a folder, if another takes its place; is_listed: or if
    entries come and go. None if there is nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    values = (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    if stat.S_ISDIR(status.st_mode) and not is_listed:
        return values
    return (*values, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_record(name: str) -> Any:
    """The result in a record (of a run: argv, PATH, variables and dropped variables); None if there
    is none that is true, and this user's own."""
    try:
        key = key_of(name)
        with open(record_file(key), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            recorded_key, dependencies, result = marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return None
    is_true = recorded_key == key and all(
        identity(path, is_listed) == recorded for path, is_listed, recorded in dependencies
    )
    return result if is_true else None
