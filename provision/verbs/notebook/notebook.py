"""`provision notebook`: JupyterLab for an environment, on loopback, with a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import CheckFailed
from provision.environment import jupyter_server
from provision.workflow.context import Context
from provision.workflow.kernel import add_kernel
from provision.workflow.plan import BuildRequest

KEPT_LINES = 20


@dataclass(frozen=True, kw_only=True)
class RunningNotebook:
    """A server that is running: its address with the token, and the kernel that it starts."""

    name: str
    address: str
    kernel: str


def notebook(
    context: Context,
    name: str,
    *,
    folder: Path,
    port: int | None,
    update: bool,
    on_start: Callable[[RunningNotebook], None],
    on_line: Callable[[str], None],
) -> None:
    """Serve notebooks of an environment until the server is stopped.

    Registers the environment's kernel if it is not. folder: what the server shows. port: None for
    the first free one. on_start, on_line: called in another thread, with the running server and
    with each line of its log. Raises CheckFailed if it ends before it listens.
    """
    kernel, _ = add_kernel(context, BuildRequest(name=name))
    jupyter = jupyter_server.ensure_server(
        context.folders, context.progress, context.mirrors, update=update
    )
    last_lines: list[str] = []
    started: list[RunningNotebook] = []

    def start(address: str) -> None:
        started.append(RunningNotebook(name=name, address=address, kernel=kernel.display_name))
        on_start(started[0])

    def keep(line: str) -> None:
        last_lines.append(line)
        del last_lines[:-KEPT_LINES]
        on_line(line)

    command = jupyter_server.server_command(jupyter, kernel.name, folder.absolute(), port)
    environment = jupyter_server.server_variables()
    status = jupyter_server.serve(command, environment, on_address=start, on_line=keep)
    if not started:
        reason = next((line for line in reversed(last_lines) if line.strip()), "it printed nothing")
        raise CheckFailed(
            f"JupyterLab ended with status {status} before it listened: {reason.strip()}",
            advice="`-v` shows its log; `--port` names another port, `--update` installs it again.",
            details="\n".join(last_lines),
        )
