"""Runs the uv executable, and translates its failures into our errors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from provision.adapters.http import (
    TIMEOUT_VARIABLE,
    UNTRUSTED,
    UNTRUSTED_ADVICE,
    connection_variables,
    read_timeout_s,
)
from provision.adapters.uv.build_environment import chosen_variables, write_wrappers
from provision.adapters.uv.configuration import IndexSettings, uv_environment
from provision.adapters.uv.indexes import pip_settings
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    ToolFailed,
    ToolMissing,
    Unreachable,
    Unsolvable,
)
from provision.core.process import clean_environment, run
from provision.core.system_errors import require_address_space, tool_without_space
from provision.core.tempdirs import temporary_directory

CACHE_VARIABLE = "UV_CACHE_DIR"
DETAIL_LIMIT = 400
NO_SOLUTION = "No solution found"
# gcc's and nvcc's first error says more than Python's, which only says that a command failed.
COMPILER_ERROR = re.compile(r"^\S+:\d+(?::\d+)?: (?:fatal )?error: .+|^nvcc fatal .+", re.M)
PYTHON_ERROR = re.compile(r"^ *([A-Za-z.]*(?:Error|Exception): .+)$", re.M)


def uv_executable() -> str:
    """The uv executable that our installation brings as a package."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise ToolMissing(
            "The uv executable is missing.",
            advice="Reinstall provision: it brings uv as a package.",
        ) from error


def run_uv(
    command: Sequence[str | Path],
    indexes: IndexSettings,
    *,
    build_variables: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """Run uv and return what it printed. Raises its failures as our errors.

    build_variables: more variables for code that builds packages, unless the user chose others.
    on_line: called, in another thread, with each line of its standard error.

    uv runs in a folder of ours and reads one configuration file of ours: neither the working folder
    nor variables that we do not know can change what it does. Addresses of indexes may hold
    passwords, so they are in that file, which only this user can read, and not on the command line.
    Code that builds packages sees few of the user's variables (`build_environment.py`).
    """
    require_address_space()
    with temporary_directory("uv-settings") as folder:
        settings = folder / "uv.toml"
        descriptor = os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(indexes.to_toml())
        try:
            command = [*command, "--config-file", settings]
            variables = {**(build_variables or {}), **_uv_variables()}
            write_wrappers(folder, clean_environment(), variables)
            variables["PATH"] = f"{folder}:{variables.get('PATH', os.defpath)}"
            # uv's cache is what later environments are made of.
            return run(
                command,
                env=variables,
                cwd=folder,
                owner_writes_only=True,
                guarded=True,  # it may build packages
                on_stderr_line=on_line,
            ).stdout
        except ToolFailed as error:
            failure = translate_failure(error)
            if isinstance(failure, IntegrityError):
                failure.advice += f" Wheels came from {', '.join(indexes.addresses)}."
            raise failure from error


def _uv_variables() -> dict[str, str]:
    variables = {**uv_environment(clean_environment()), **chosen_variables(os.environ)}
    if variables.get(CACHE_VARIABLE):  # uv would start from its own folder, which goes with it
        variables[CACHE_VARIABLE] = str(Path(variables[CACHE_VARIABLE]).absolute())
    if not sys.stderr.isatty():
        variables["UV_NO_PROGRESS"] = "1"
    if os.environ.get(TIMEOUT_VARIABLE):
        variables.setdefault("UV_HTTP_TIMEOUT", str(max(1, round(read_timeout_s()))))
    return {**variables, **connection_variables(pip_settings(), variables)}


class _Failure(NamedTuple):
    """What uv prints, and our error. The message may name the pattern's groups, uv's `sentence` and its
    `cause`."""

    pattern: str
    error: type[ProvisionError]
    message: str
    advice: str = ""


_NOT_A_WHEEL = (
    IntegrityError,
    "A download is not the wheel that the lock names, or any wheel: {sentence}.",
    "A mirror may be damaged, or a login page may answer in its place; nothing was changed.",
)
# `--relock` may choose the same file again: uv keeps what an index listed, and an index may list it still.
CHOOSE_ANOTHER = (
    "`provision add NAME 'PACKAGE!=VERSION'` locks another version. Where spec.yml names the address, "
    "change it there."
)
# By the texts of uv 0.13; the first that fits counts.
_FAILURES = (
    _Failure(
        r"Hash mismatch for `([^`]+)`",
        IntegrityError,
        "{0} is not the file that the lock names: its hash differs from the one in conda-lock.yml.",
        "Restore the lock or run `provision lock --relock`.",
    ),
    _Failure(
        r"Failed to download (?:and build )?`(.+ @ .+)`[\s\S]*error \((404|410)",
        Unreachable,
        "`{0}` does not exist: the server answers {1}.",
        "Name another address, or the package by its name alone.",
    ),
    _Failure(
        r"Distribution not found at: (\S+)",
        InvalidSpec,
        "There is nothing at {0}.",
        "Name a wheel, an archive or a folder that exists, or the package by its name alone.",
    ),
    _Failure(
        r"HTTP status client error \((?:404|410)[^)]*\)|404 Not Found|410 Gone"
        "|failed to query metadata of file",
        Unreachable,
        "A package is gone from the index: {sentence}.",
        CHOOSE_ANOTHER,
    ),
    _Failure(
        "invalid package format",
        Unreachable,
        "The index does not serve a complete wheel: {cause}",
        "Check the mirror; a connection that ends early looks the same. Run the same command again.",
    ),
    _Failure(
        r"Git operation failed[\s\S]+?git fetch [^']*'([^']+)'[\s\S]+?--- stderr\s+(?:fatal: )?(.+)",
        Unreachable,
        "`git+{0}` cannot be read: {1}.",
        "Check the address and the revision; private repositories need git's own login.",
    ),
    _Failure(NO_SOLUTION, Unsolvable, "No set of wheels satisfies the request: {cause}"),
    _Failure(
        r"Wheel variant `([^`]+)`",
        InvalidSpec,
        "{0} is a wheel variant (PEP 825, a draft), which provision does not install.",
        "Name a wheel without a variant label, or request the package by name.",
    ),
    _Failure("Invalid zip file structure|unexpected header", *_NOT_A_WHEEL),
    _Failure(
        r"Failed to (?:download and )?build `([^`=]+)==([^`]+)`",
        Unsolvable,
        "{0} {1} has no wheel, and its source archive says what it requires only while it is built, "
        "which fails: {build_error}.",
        "Name a wheel that its project publishes elsewhere ('NAME @ https://...whl'); or request "
        "another version.",
    ),
    _Failure(
        # No connection, silence, an end in the middle, a server that fails or refuses.
        r"error sending request|client error \(Connect\)|dns error|timed out|network timeout|"
        "error decoding response body|HTTP status server error|HTTP status client error",
        Unreachable,
        "The package index did not answer: {sentence}.",
        "Check the network, or the index settings of uv or pip. With UV_OFFLINE=1 uv takes what its "
        "cache has.",
    ),
    # Everything else that goes wrong while a download is unpacked: its bytes are not a wheel's.
    _Failure("Failed to extract archive", *_NOT_A_WHEEL),
)


def translate_failure(error: ToolFailed) -> ProvisionError:
    """uv's failure as one of our errors; unrecognized ones stay ToolFailed."""
    text = error.tail
    if no_space := tool_without_space(text):
        return no_space
    for failure in _FAILURES:
        if match := re.search(failure.pattern, text):
            build_error = (PYTHON_ERROR.findall(text) or [_sentence(text)])[-1].rstrip(".")
            message = failure.message.format(
                *match.groups(),
                sentence=_sentence(text),
                cause=_cause(text),
                build_error=_shortened(build_error),
            )
            advice = UNTRUSTED_ADVICE if UNTRUSTED in text else failure.advice
            return failure.error(message, advice=advice, details=text)
    return error


def _sentence(text: str) -> str:
    """uv's error and its causes in one line."""
    message = text.partition("error: ")[2] or text
    lines = [line.strip().removeprefix("cause: ") for line in message.splitlines()]
    return _shortened("; ".join(line for line in lines if line))


def _cause(text: str) -> str:
    cause = text.partition("cause:")[2] or text
    return _shortened(" ".join(cause.split()))


def _shortened(text: str) -> str:
    return text if len(text) <= DETAIL_LIMIT else text[: DETAIL_LIMIT - 3] + "..."
