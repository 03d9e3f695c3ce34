"""Every error that provision raises on purpose, each with its exit code.

An error says what happened, to which file or value, and what to do next. Only the command line
catches them. Exit codes 0 (fine), 1 (a check failed) and 2 (usage) belong to click and the
commands; the rest are listed here and in docs/errors.md, and a test compares the two.
"""

from __future__ import annotations

from typing import ClassVar

from provision.core.credentials import without_credentials


class ProvisionError(Exception):
    """Base of all errors we raise on purpose: one line for the user, and what to do next.

    A message of several lines is a list of mistakes; advice of several lines is a list too. Advice
    next to a list begins on a line of its own. Credentials in addresses are taken out.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, advice: str = "", details: str = "") -> None:
        self.message = without_credentials(message)
        self.advice = without_credentials(advice)
        super().__init__(self.message)
        # Printed with -v only: the solver's or tool's own message.
        self.details = without_credentials(details)

    def __str__(self) -> str:
        has_list = "\n" in self.message or "\n" in self.advice
        separator = "\n" if has_list else " "
        return f"{self.message}{separator}{self.advice}".strip()


class CheckFailed(ProvisionError):
    """A check ran and failed: smoke test, guard, drift."""

    exit_code = 1


class InvalidSpec(ProvisionError):
    """A spec, option or name is not what it must be. All mistakes are reported at once."""

    exit_code = 3


class NoSuchBuild(ProvisionError):
    """The requested combination does not exist as a published build; lists the nearest that do."""

    exit_code = 4


class Unsolvable(ProvisionError):
    """The builds exist but the solver found no set of packages that satisfies all pins."""

    exit_code = 5


class StaleLock(ProvisionError):
    """A generated file no longer matches its inputs, and is not overwritten without a request."""

    exit_code = 6


class IntegrityError(ProvisionError):
    """Bytes are not what the lock says they are."""

    exit_code = 7


class Unreachable(ProvisionError):
    """An index, channel, registry or package did not respond or no longer exists."""

    exit_code = 8


class ToolMissing(ProvisionError):
    """A required tool is missing (Docker engine, interpreter, base image)."""

    exit_code = 9


class ToolFailed(ProvisionError):
    """A tool ran and failed: carries the command, its status and its last lines."""

    exit_code = 10

    def __init__(self, command: list[str], status: int, tail: str, *, advice: str = "") -> None:
        short_command = " ".join(command[:4])
        if len(command) > 4:
            short_command += " ..."
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        reason = lines[-1] if lines else "it printed nothing"
        super().__init__(
            f"`{short_command}` ended with status {status}: {reason}", advice=advice, details=tail
        )
        self.command = command
        self.status = status
        self.tail = self.details


class OutputTooLong(ToolFailed):
    """A tool printed more than its output may have, and was ended."""


class NoSpace(ProvisionError):
    """The disk is full or a quota is used up."""

    exit_code = 11


class InUse(ProvisionError):
    """A name, path or kernel is in use: by another process, or by something that provision did not
    make."""

    exit_code = 12


class TimedOut(ProvisionError):
    """A deadline passed; what was running has been ended."""

    exit_code = 13


class SystemRefused(ProvisionError):
    """The operating system refused: permissions, a read-only disk, a name that is too long."""

    exit_code = 14
