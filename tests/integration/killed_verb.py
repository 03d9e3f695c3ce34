"""Runs `provision`, which is killed before its first step of a kind on the disk.

Usage: python killed_verb.py EVENT TEXT ARGUMENT... An event is one of Python's audit events, such as
os.rename; TEXT is in what the step is about.
"""

from __future__ import annotations

import os
import signal
import sys


def main(kind: str, text: str, arguments: list[str]) -> None:
    def kill(event: str, values: tuple[object, ...]) -> None:
        if event == kind and any(text in str(value) for value in values):
            os.kill(os.getpid(), signal.SIGKILL)

    from provision.cli import main as cli

    sys.addaudithook(kill)
    sys.argv = ["provision", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
