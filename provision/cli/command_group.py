"""A command that also has verbs of its own: `provision lock NAME` beside `provision lock verify NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class DefaultCommandGroup(click.Group):
    """A group whose `usual` command runs unless the first word is one of its verbs. What looks like a verb and is meant as an argument
    of `usual` stands behind `--`. Help shows both."""

    def __init__(self, usual: click.Command) -> None:
        super().__init__(name=usual.name, help=usual.help)
        self.usual = usual
        usual.format_help = self.format_help  # type: ignore[method-assign]

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context decides which command runs; an empty line that is being completed may become either."""
        if (args and args[0] in self.commands) or (not args and extra.get("resilient_parsing")):
            return super().make_context(info_name, args, parent, **extra)
        return self.usual.make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*self.usual.collect_usage_pieces(ctx), "|", "COMMAND ..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.usual.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            *super().shell_complete(ctx, incomplete),
            *self.usual.shell_complete(ctx, incomplete),
        ]
