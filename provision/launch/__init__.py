"""How environments and their images are started: what they require to run, each requirement with
its reason, in the terms of each engine and scheduler.
"""

from provision.launch.run_spec import (
    RUN_FORMATS,
    TOKEN_VARIABLE,
    NotebookServer,
    RunFormat,
    RunOptions,
    check_run_options,
    contract_context,
    docker_arguments,
    find_notebook_server,
    parse_mount,
    parse_user,
    run_command,
    run_requirements,
)

__all__ = [
    "RUN_FORMATS",
    "TOKEN_VARIABLE",
    "NotebookServer",
    "RunFormat",
    "RunOptions",
    "check_run_options",
    "contract_context",
    "docker_arguments",
    "find_notebook_server",
    "parse_mount",
    "parse_user",
    "run_command",
    "run_requirements",
]
