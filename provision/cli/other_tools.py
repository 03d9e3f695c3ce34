"""Words that users of conda, pixi, uv and pip type, and our verbs for them.

They are no aliases: one thing has one name here, and the error says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

FOREIGN_VERBS = {
    "create": "build",
    "delete": "env remove",
    "diff": "env diff",
    "envs": "env list",
    "exec": "run",
    "export": "lock export",
    "info": "status",
    "install": "add",
    "list": "env list",
    "ls": "env list",
    "new": "build",
    "python": "run",
    "rm": "env remove",
    "search": "matrix",
    "show": "env show",
    "sync": "build",
    "test": "smoke",
    "tree": "env tree",
    "uninstall": "remove",
    "upgrade": "update",
    "version": "--version",
}
FOREIGN_ENV_VERBS = {
    "activate": "shell",
    "add": "add",
    "build": "build",
    "delete": "env remove",
    "export": "lock export",
    "info": "env show",
    "install": "env create",
    "ls": "env list",
    "new": "env create",
    "rm": "env remove",
    "run": "run",
    "update": "update",
}


# Options that verbs had, and the form that replaces each.
SMOKE_SETTINGS = {
    "--backend": "backend=gloo",
    "--deadline": "deadline=30",
    "--device": "device=cpu",
    "--expect": "expect=FILE",
    "--folder": "folder=DIR",
    "--full": "profile=full",
    "--only": "only=PHASE,PHASE",
    "--ranks": "ranks=N",
    "--require-gpu": "require_gpu=true",
    "--skip": "skip=PHASE,PHASE",
    "--strict": "strict=true",
    "--timeout": "timeout=S",
}
WORKFLOW_KEYS = (
    *("--across", "--gpus", "--image", "--install", "--no-strict", "--retention-days"),
    *("--schedule", "--strict"),
)
SWITCH = {"--deadline": "--set deadline=S", "--retry": "--set retries=N"}
MOVED: Mapping[str, Mapping[str, str]] = {
    "activate": SWITCH,
    "build": {
        "--quick": "--set profile=quick",
        **{option: f"--set {setting}" for option, setting in SMOKE_SETTINGS.items()},
    },
    "channel bootstrap": {"--again": "--force"},
    "doctor": {"--nagios": "--format nagios"},
    "drift": {"--timeout": "a node has 60 s, and 30 minutes with --deep"},
    "env tree": {"--depth": "`env tree NAME PACKAGE` shows a part of the tree"},
    "image run": {"--listen": "--port ADDRESS:PORT"},
    "join": {"--status": "--dry-run"},
    "lab init": {"--contact": "the key `contact` of lab.yml"},
    "launch": {
        "--cpus": "--set cpus=N",
        "--job-name": "--set job_name=NAME",
        "--jobset": "--set jobset=true",
        "--out": "--output FILE",
        "--pull-secret": "--set pull_secret=NAME",
        "--queue": "--set queue=NAME",
        "--ranks": "--set ranks=N",
        "--rdma": "--set rdma=RESOURCE",
        "--sbatch": "--set sbatch=--OPTION=VALUE",
        "--signal": "--set signal=S",
        "--squashfs": "--prefix FILE.sqsh",
    },
    "lock diff": {"--exit-code": "--check"},
    "matrix ci": {
        "--runners": "`matrix ci RUNNERS`",
        "--summary": "--jobs prints the summary, and appends it to $GITHUB_STEP_SUMMARY",
        **dict.fromkeys(WORKFLOW_KEYS, "a key of `workflow:` in runners.yml"),
    },
    "notebook": {"--folder": "`notebook NAME FOLDER`"},
    "pack": {
        "--fast": "--compression lz4",
        "--install-path": "`path:` under `defaults:` in nodes.yml",
    },
    "rollback": SWITCH,
    "ship": {**SWITCH, "--tree": "--set tree=N"},
    "smoke": {
        "--out": "--output DIR",
        **{option: f"--set {setting}" for option, setting in SMOKE_SETTINGS.items()},
    },
}
MOVED_ANYWHERE = {
    "--accept": "`accept: [ID]` in envs/NAME/spec.yml",
    "--build-env": "the variable PROVISION_BUILD_ENV",
    "--channel-alias": "--mirror '*=URL'",
    "--connect-timeout": "`connect_s:` under `defaults:` in nodes.yml",
    "--fanout": "`fanout:` under `defaults:` in nodes.yml",
}
# Verbs that took the options of a request, and take an environment.
TAKE_AN_ENVIRONMENT = ("env create", "image build", "kernel add", "smoke")


def moved_option(path: str, option: str) -> str | None:
    """Where to state what an option of this verb stated before; None if it never had that option."""
    from provision.core.spec_fields import QUERY_KEYS, SPEC_KEYS

    form = MOVED.get(path, {}).get(option) or MOVED_ANYWHERE.get(option)
    if form is not None:
        return f"There is no {option} any more: {form}."
    flags = {flag for key in SPEC_KEYS for flag in (key.option, key.negative_option)}
    if path in TAKE_AN_ENVIRONMENT and option in flags:
        return (
            f"`{path}` takes an environment. State the request with `provision build NAME {option} "
            "…`, or in envs/NAME/spec.yml."
        )
    if path == "matrix ci" and option in {f"--{key.name}" for key in QUERY_KEYS}:
        return (
            "`matrix ci` takes the environments of the envs folder. `provision matrix lock "
            f"{option} …` makes them."
        )
    return None


class GroupWithForeignVerbs(click.Group):
    """A group whose error for another tool's word names our verb."""

    foreign_verbs: ClassVar[Mapping[str, str]] = FOREIGN_VERBS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = self.foreign_verbs.get(args[0])
        if verb is not None and not ctx.resilient_parsing:
            message = f"No such command '{args[0]}'. Did you mean `provision {verb}`?"
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)


class EnvGroup(GroupWithForeignVerbs):
    foreign_verbs = FOREIGN_ENV_VERBS
