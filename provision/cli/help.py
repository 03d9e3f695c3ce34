"""How the help of a verb reads: options in sections, an example, exit codes.

The verbs are made by click's decorators in their own modules. `dressed` gives each the same help.
"""

from __future__ import annotations

import click

from provision.cli.completion import add_completion
from provision.cli.options import make_optional
from provision.cli.other_tools import moved_option
from provision.cli.set_option import SetOption
from provision.cli.shared_options import ARGUMENTS, SHARED_OPTIONS

# What only one verb has comes first.
SECTIONS = ("Options", "Request", "Source", "Smoke", "Nodes", "Settings of --set", "Output")
# Of fewer options the help is one list.
SECTIONS_FROM = 14

SHARED = (
    f"Every verb also takes {', '.join(option.opts[0] for option in SHARED_OPTIONS)}: "
    "`provision --help` explains them."
)
# docs/errors.md explains them; a test compares them with the errors.
EXIT_CODES = (
    "Exit codes: 0 fine, 1 a check failed, 2 usage, 3 invalid spec, 4 no such build, 5 unsolvable, "
    "6 stale lock, 7 wrong bytes, 8 unreachable, 9 tool missing, 10 tool failed, 11 disk full, "
    "12 in use, 13 timed out, 14 the system refused, 130 interrupted."
)

# One example for each verb, as it is typed.
EXAMPLES = {
    "activate": "activate lab --on slurm:gpu",
    "add": "add lab einops 'numpy<2'",
    "build": "build --torch 2.3 --cuda 12.1",
    "channel bootstrap": "channel bootstrap",
    "channel mirror": "channel mirror lab /mnt/usb/mirror",
    "checkpoint export": "checkpoint export run/ckpt --part model --safetensors exported",
    "checkpoint import": "checkpoint import old.ckpt run/ckpt --step 100",
    "checkpoint list": "checkpoint list run/ckpt",
    "checkpoint prune": "checkpoint prune run/ckpt --keep 3 --dry-run",
    "checkpoint show": "checkpoint show run/ckpt",
    "checkpoint verify": "checkpoint verify run/ckpt --all",
    "clean": "clean --dry-run",
    "doctor": "doctor lab",
    "drift": "drift lab --on slurm:gpu",
    "env create": "env create lab",
    "env diff": "env diff lab --files",
    "env list": "env list",
    "env remove": "env remove lab",
    "env show": "env show lab",
    "env tree": "env tree lab numpy",
    "facts check": "facts check",
    "facts show": "facts show",
    "facts update": "facts update",
    "image build": "image build lab --base debian:bookworm-slim",
    "image contract": "image contract lab --format slurm-pyxis",
    "image pull": "image pull registry.lab:5000/ml/torch:2.3",
    "image push": "image push lab registry.lab:5000/ml/torch:2.3",
    "image run": "image run lab --jupyter",
    "image sbom": "image sbom lab -o lab.cdx.json",
    "image show": "image show registry.lab:5000/ml/torch:2.3",
    "import": "import environment.yml",
    "init": "init",
    "jobs cancel": "jobs cancel 123",
    "jobs list": "jobs list",
    "jobs log": "jobs log 123",
    "join": "join https://git.lab/ml/envs.git",
    "kernel add": "kernel add lab",
    "kernel list": "kernel list",
    "kernel remove": "kernel remove lab",
    "lab check": "lab check",
    "lab init": "lab init",
    "launch": "launch lab --on slurm:gpu --nodes 4 --gpus 8 -- train.py",
    "lock diff": "lock diff lab lab2",
    "lock export": "lock export lab --format requirements",
    "lock verify": "lock verify lab",
    "lock": "lock lab --update numpy",
    "matrix": "matrix --driver 535 --gpu V100",
    "matrix ci": "matrix ci --format github",
    "matrix explain": "matrix explain --torch 2.3 --cuda 12.1",
    "matrix lock": "matrix lock --torch 2.3 --dry-run",
    "nodes check": "nodes check lab --on slurm:gpu",
    "nodes list": "nodes list --on slurm:gpu",
    "notebook": "notebook lab",
    "pack": "pack lab",
    "passport show": "passport show lab",
    "remove": "remove lab einops",
    "render": "render lab",
    "report": "report lab -o report.html",
    "rollback": "rollback lab --on slurm:gpu",
    "run": "run lab -- python train.py",
    "shell": "shell lab",
    "ship": "ship lab --on slurm:gpu",
    "smoke": "smoke lab --quick",
    "status": "status",
    "update": "update lab numpy",
}


class GroupedHelp(click.Command):
    """The help that all verbs have. Put before the class of a command."""

    path = ""  # as it is typed, without `provision`

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *SHARED_OPTIONS]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from provision.cli.project_name import with_name

        ctx.meta[ARGUMENTS] = tuple(args)
        try:
            return super().parse_args(ctx, with_name(self, self.path, ctx, args))
        except click.NoSuchOption as error:
            advice = moved_option(self.path, error.option_name)
            if advice is None:
                raise
            raise click.UsageError(advice, ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = []
        for parameter in default_command(self).get_params(ctx):
            if isinstance(parameter, click.Option) and parameter not in SHARED_OPTIONS:
                options.append(parameter)
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in options:
            row = option.get_help_record(ctx)
            if row is not None:
                has_sections = len(options) >= SECTIONS_FROM
                section = getattr(option, "section", "Options") if has_sections else "Options"
                sections[section].append(row)
            if isinstance(option, SetOption):
                sections["Settings of --set"] = option.help_rows()
        for title, rows in sections.items():
            if not rows:
                continue
            with formatter.section(title):
                formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        if self.path in EXAMPLES:
            formatter.write_text(f"Example: provision {EXAMPLES[self.path]}")
        formatter.write_text(SHARED)
        formatter.write_text(EXIT_CODES)


def default_command(command: click.Command) -> click.Command:
    """The command whose options a verb has: its own, or those of a group's default command."""
    default = getattr(command, "default", command)
    assert isinstance(default, click.Command)
    return default


def dressed(command: click.Command, path: str) -> click.Command:
    """A verb with our help and completion; a group with all its verbs. path: as it is typed."""
    for parameter in default_command(command).params:
        add_completion(parameter)
    make_optional(default_command(command), path)
    if hasattr(command, "default"):
        command.default = dressed(command.default, path)
    if isinstance(command, click.Group):
        for name, verb in list(command.commands.items()):
            command.add_command(dressed(verb, f"{path} {name}"), name)
    if isinstance(command, GroupedHelp):
        return command
    # A verb that parses its arguments in its own way keeps that: only its help changes.
    kind = type(command)
    kind_with_help: type[GroupedHelp] = type(kind.__name__, (GroupedHelp, kind), {"path": path})
    result = kind_with_help.__new__(kind_with_help)
    vars(result).update(vars(command))
    return result
