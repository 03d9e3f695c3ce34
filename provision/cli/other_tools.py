"""Words that users of conda, pixi, uv and pip type, and our verbs for them.

They are no aliases: one thing has one name here, and the error says it.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

# Verbs that took the options of a request, and take an environment.
TAKE_AN_ENVIRONMENT = ("env create", "image build", "kernel add", "smoke")


def moved_option(path: str, option: str) -> str | None:
    """Where to state what an option of this verb stated before; None if it never had that option."""
    from provision.core.spec_fields import QUERY_KEYS, SPEC_KEYS
    from provision.core.yaml_text import parse_yaml

    forms = parse_yaml(Path(__file__).with_name("moved_options.yml").read_text(encoding="utf-8"))
    form = forms.get(path, {}).get(option) or forms["*"].get(option)
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
            "`matrix ci` takes the environments of the envs folder. `provision lock --torch 2.3 --cuda "
            "12.1` makes one."
        )
    return None


def foreign_verbs(group: str = "") -> dict[str, str]:
    """Our verb for each of theirs, at the top or in a group."""
    text = Path(__file__).with_name("foreign_verbs.json").read_bytes()
    verbs: dict[str, dict[str, str]] = json.loads(text)
    return verbs.get(group, {})


class GroupWithForeignVerbs(click.Group):
    """A group whose error for another tool's word names our verb."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = None
        if args[0] not in self.list_commands(ctx) and not ctx.resilient_parsing:
            group = str(ctx.info_name) if ctx.parent else ""
            verb = foreign_verbs(group).get(args[0])
        if verb is not None:
            message = f"No such command '{args[0]}'. Did you mean `provision {verb}`?"
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)
