"""Compiles sources of a prefix, so that nobody who imports them has to: `import torch` takes less
than half the CPU time with byte code, and a read-only or shared prefix cannot keep what Python
compiles.

The prefix's own Python runs this file, because byte code is for one version of Python:
`PREFIX/bin/python -s -S -B -X utf8 bytecode.py PREFIX MODE PROCESSES < BATCHES`. BATCHES has one
source a line, from the prefix; empty lines separate batches.

The same sources give the same bytes. What Python writes also depends on which strings other code in
the process shares (python/cpython#78274). So a fresh child compiles each batch, and this process
imports nothing but what it needs from the standard library. Byte code names its source from the
prefix; Python puts the full path in when it imports it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its modules are not the standard library's

import os
import py_compile
import warnings

MODES = {
    "checked-hash": py_compile.PycInvalidationMode.CHECKED_HASH,
    "unchecked-hash": py_compile.PycInvalidationMode.UNCHECKED_HASH,
}


def main() -> int:
    prefix, mode, processes = sys.argv[1:]
    batches = [batch.split("\n") for batch in sys.stdin.read().split("\n\n")]
    compile_batches(batches, prefix, mode, int(processes))
    return 0


def compile_batches(batches: list[list[str]], prefix: str, mode: str, processes: int) -> None:
    """Compile sources, several batches at a time.

    A source that is not valid Python (a template, code for another version) gets no byte code.
    Raises OSError if byte code cannot be written.
    """
    waiting = list(reversed(batches))
    running = 0
    problem = 0
    while waiting or running:
        if waiting and running < processes:
            _start_child(waiting.pop(), prefix, mode)
            running += 1
            continue
        _, status = os.wait()
        running -= 1
        problem = problem or status
    if problem:
        number = os.WEXITSTATUS(problem) if os.WIFEXITED(problem) else 0
        raise OSError(number, os.strerror(number) if number else "a compiling process was killed")


def _start_child(batch: list[str], prefix: str, mode: str) -> None:
    parent = os.getpid()
    if os.fork():
        return
    status = 1
    try:
        _compile_batch(batch, prefix, mode, parent)
        status = 0
    except OSError as error:
        status = error.errno or 1
    finally:
        os._exit(status)


def _compile_batch(batch: list[str], prefix: str, mode: str, parent: int) -> None:
    warnings.simplefilter("ignore")
    for source in batch:
        if os.getppid() != parent:  # it was killed: nobody waits for this
            return
        try:
            py_compile.compile(
                os.path.join(prefix, source),
                dfile=source,
                doraise=True,
                invalidation_mode=MODES[mode],
            )
        except (py_compile.PyCompileError, FileNotFoundError):
            continue


if __name__ == "__main__":
    sys.exit(main())
