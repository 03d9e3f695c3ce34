"""Where `provision` begins, and how `provision run NAME -- COMMAND` and completion cost little more
than Python.

A run that had nothing to say leaves a record: what it put around the command, and all that decided
about it (`cli/records.py`). While none of that has changed, the next run becomes its command
here, and imports nothing. Whatever is not as recorded, the command line decides: `main`.
"""

from __future__ import annotations

import os
import sys

from provision.cli import records

RANK_LAUNCHERS = ("torchrun", "accelerate", "fabric", "lightning", "torch.distributed")

# `typing` itself would take half of the time that Python takes to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> None:
    """The `provision` command. Ends the process itself."""
    shell, _, instruction = records.START.get("_PROVISION_COMPLETE", "").partition("_")
    if instruction == "complete":
        from provision.cli import completion

        if shell in completion.SHELLS:
            completion.main(shell)
            return
    command_of_run(sys.argv[1:])
    import gc

    gc.set_threshold(100_000)  # what imports make, stays: looking for garbage in it takes 3 ms
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
    if name.startswith("-") or not command or "PATH" not in records.START or starts_ranks(command):
        return
    record = records.read_record(name)
    if record is None:
        return
    argv, path, variables, dropped = record
    environment = {key: records.START[key] for key in records.START if key not in dropped}
    environment.update(variables, PATH=f"{path}:{records.START['PATH']}")

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
