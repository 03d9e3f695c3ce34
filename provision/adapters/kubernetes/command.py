"""Runs kubectl; its failures become our errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from provision.core import process
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, TimedOut, ToolFailed, ToolMissing, Unreachable
from provision.core.json_text import map_texts, parse_json
from provision.core.schema import first_schema_error
from provision_runtime.report.text import escape_line

COMMAND_TIMEOUT_S = 60.0
# A node of a cluster takes some 20 KiB in JSON.
MOST_BYTES = 256 << 20
# kubectl's own log, which repeats its last line.
_LOG_LINE = re.compile(r"[EW]\d{4} \d\d:\d\d:")
_UNREACHABLE = re.compile(
    r"refused|no such host|timed? ?out|unable to connect|TLS handshake|was the connection", re.I
)


@frozen
class Kubectl:
    """The user's kubectl. context: of its configuration, and namespace in it; empty: the current
    ones."""

    context: str = ""
    namespace: str = ""

    def run(self, *arguments: str, stdin: str = "", advice: str = "") -> str:
        """What kubectl printed. stdin: what it reads. advice: for a refusal.

        Raises ToolMissing without kubectl, Unreachable if the API server does not respond, InvalidSpec
        for what it refuses.
        """
        command = [*self.command, *arguments, f"--request-timeout={COMMAND_TIMEOUT_S:.0f}s"]
        try:
            return process.run(
                command,
                timeout_s=COMMAND_TIMEOUT_S + 5,
                most_bytes=MOST_BYTES,
                stdin=stdin.encode(),
            ).stdout
        except ToolMissing as error:
            raise ToolMissing(
                "There is no `kubectl` on this machine.",
                advice="Install it, or run this on a machine that has it; `ssh:` nodes do not need it.",
            ) from error
        except TimedOut as error:
            message = f"no answer within {COMMAND_TIMEOUT_S:.0f} s"
            cause: Exception = error
        except ToolFailed as error:
            lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
            lines = [line for line in lines if not _LOG_LINE.match(line)] or lines[-1:]
            message = "; ".join(lines) or f"status {error.status}"
            if not _UNREACHABLE.search(message):
                raise InvalidSpec(f"Kubernetes refused: {message}", advice=advice) from error
            cause = error
        raise Unreachable(
            f"The Kubernetes API server does not answer: {message}",
            advice="`kubectl cluster-info` says whether it is up; `context:` in nodes.yml chooses "
            "another one.",
        ) from cause

    @property
    def command(self) -> list[str]:
        """With its options."""
        options = {"--context": self.context, "--namespace": self.namespace}
        return ["kubectl", *(f"{name}={value}" for name, value in options.items() if value)]

    def stream(self, *arguments: str, on_line: Callable[[str], None]) -> None:
        """Pass on each line that kubectl prints until it ends, whatever its exit code: it fails when a
        pod goes away."""
        process.run([*self.command, *arguments], on_stdout_line=on_line, check=False)

    def ask(self, kind: str, *arguments: str, advice: str = "") -> Any:
        """The document that kubectl printed (-o json), checked. kind: its name in kubectl.schema.json.

        Raises Unreachable for another document, and what `run` raises.
        """
        return parse_document(kind, self.run(*arguments, "-o", "json", advice=advice))


def parse_document(kind: str, text: str) -> Any:
    """The document in what kubectl printed: texts of kubelets are lines in it. Raises
    Unreachable."""
    try:
        document = map_texts(parse_json(text), escape_line)
        problem = first_schema_error({kind: document}, "kubectl")
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise Unreachable(
            f"kubectl did not print {kind}: {problem}.",
            advice="`kubectl get ... -o json` shows it; a proxy or a plug-in may have changed it.",
        )
    return document
