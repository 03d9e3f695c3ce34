"""Compiles every source of a prefix, so that no rank on any node has to: `import torch` takes half
the CPU time with byte code, and a read-only or shared prefix cannot keep what Python compiles.

The prefix's own Python runs this, because byte code is for one version of Python:
`PREFIX/bin/python -m provision_runtime.node.bytecode PREFIX FINAL PROCESSES`.

Nothing compares this byte code with its sources when it is imported (PEP 552, unchecked hashes):
the times of a mounted or unpacked prefix mean nothing, and its sources do not change.

The same sources give the same bytes. What Python writes also depends on which strings other code in
the process shares (python/cpython#78274), so a fresh child compiles each batch of sources, and the
batches do not depend on the number of processes.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import warnings

BATCH = 100  # sources; part of the bytes


def main() -> int:
    prefix, final, processes = sys.argv[1:]
    remove_byte_code(prefix)
    sources = find_sources(prefix)
    compile_sources(sources, prefix, final, int(processes))
    print(len(sources))
    return 0


def remove_byte_code(prefix: str) -> None:
    """Remove the byte code that packages brought: it is compared with the times of its sources."""
    for folder, names, _ in os.walk(prefix):
        if "__pycache__" in names:
            names.remove("__pycache__")
            shutil.rmtree(os.path.join(folder, "__pycache__"))


def find_sources(prefix: str) -> list[str]:
    """Every source below a prefix's lib, sorted; links are not followed."""
    paths = []
    for folder, _, names in os.walk(os.path.join(prefix, "lib")):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path) and not os.path.islink(path):
                paths.append(path)
    return sorted(paths)


def compile_sources(sources: list[str], prefix: str, final: str, processes: int) -> None:
    """Compile sources, several batches at a time. Tracebacks will name `final`, not `prefix`.

    A source that is not valid Python (a template, code for another version) gets no byte code.
    Raises OSError if byte code cannot be written.
    """
    batches = [sources[start : start + BATCH] for start in range(0, len(sources), BATCH)]
    running = 0
    problem = 0
    while batches or running:
        if batches and running < processes:
            _start_child(batches.pop(0), prefix, final)
            running += 1
            continue
        _, status = os.wait()
        running -= 1
        problem = problem or status
    if problem:
        number = os.WEXITSTATUS(problem) if os.WIFEXITED(problem) else 0
        raise OSError(number, os.strerror(number) if number else "a compiling process was killed")


def _start_child(batch: list[str], prefix: str, final: str) -> None:
    parent = os.getpid()
    if os.fork():
        return
    status = 1
    try:
        _compile_batch(batch, prefix, final, parent)
        status = 0
    except OSError as error:
        status = error.errno or 1
    finally:
        os._exit(status)


def _compile_batch(batch: list[str], prefix: str, final: str, parent: int) -> None:
    warnings.simplefilter("ignore")
    for source in batch:
        if os.getppid() != parent:  # it was killed: nobody waits for this
            return
        try:
            py_compile.compile(
                source,
                dfile=final + source[len(prefix) :],
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except py_compile.PyCompileError:
            continue


if __name__ == "__main__":
    sys.exit(main())
