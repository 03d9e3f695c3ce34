"""`provision lock`: making a lock, and the verbs that verify and export locks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    all_option,
    build_env_option,
    dry_run_option,
    mirror_option,
    output_file_option,
    relock_option,
)
from provision.cli.spec_options import (
    build_request,
    name_argument,
    request_options,
    requests_of_all,
)
from provision.cli.verb import context_of, print_outcomes, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


class DefaultCommandGroup(click.Group):
    """A group with a default command: `provision lock NAME` next to `provision lock verify NAME`.

    The default command runs unless the first word is one of the group's verbs. An argument that
    looks like a verb stands behind an option. Help shows both.
    """

    def __init__(self, default: click.Command) -> None:
        super().__init__(name=default.name, help=default.help)
        self.default = default

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context decides which command runs."""
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        if args[:1] == ["diff"] and len(args) > 2:
            raise click.UsageError(
                "There is no `lock diff` any more: `git diff` compares locks, and `provision lock NAME "
                "--relock --dry-run` shows what would change."
            )
        self.default.format_help = self.format_help  # type: ignore[method-assign]
        return self.default.make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*self.default.collect_usage_pieces(ctx), "|", "COMMAND ..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.default.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.command("lock")
@name_argument
@request_options
@relock_option
@build_env_option
@all_option
@dry_run_option
@verb
def make_lock(
    console: Console, name: str | None, envs: Path | None, dry_run: bool, **options: Any
) -> int | None:
    """Lock every conda and pip package by URL and hash.

    Writes conda-lock.yml, and the files that it is made from.
    """
    from provision.cli import unchanged
    from provision.core.paths import default_folders

    is_plain = not (dry_run or console.verbose or any(options.values()))
    repeatable = name if is_plain else None
    run = unchanged.RepeatableRun(console, "lock", default_folders(envs), repeatable)
    if run.repeat():
        return None

    from provision.verbs.lock.output import preview_lines
    from provision.workflow import lock as command

    context = context_of(console, envs, options)
    relock = options["relock"]
    if options["every"]:
        from provision.workflow import batch

        requests = requests_of_all(context, name, options, relock=relock)
        return print_outcomes(console, batch.lock_all(context, requests, dry_run=dry_run))
    request = build_request(name, options, relock=relock)
    if dry_run:
        preview = command.preview(context, request)
        console.result("lock-preview", preview, preview_lines(preview))
        return None
    lock, is_new = command.lock(context, request)
    counts = command.package_counts(lock)
    document = {
        "path": lock.path,
        "sha256": lock.sha256,
        "packages": sum(counts.values()),
        "portable": lock.portable,
        "made": is_new,
        "platforms": counts,
    }
    packages_per_platform = [f"{count} packages for {name}" for name, count in counts.items()]
    line = f"{'locked' if is_new else 'already locked'}: {', '.join(packages_per_platform)}"
    portability = "" if lock.portable else " (not portable)"
    text = f"{line} in {lock.path}{portability}"
    if not is_new:
        run.record(document, text)
    console.result("lock", document, text)
    return None


lock = DefaultCommandGroup(make_lock)


@lock.command()
@click.argument("targets", metavar="[NAME|FILE]...", nargs=-1)
@click.option(
    "--offline",
    is_flag=True,
    help="Use no network: skip the checks of wheel metadata.",
)
@mirror_option
@verb
def verify(
    console: Console, targets: tuple[str, ...], envs: Path | None, offline: bool, **options: Any
) -> int:
    """Check that locks are sound, whichever tool made them. The exit code is 1 if one is not.

    Checks requirements, hashes, channels, duplicates and inputs. Without arguments, checks every lock in
    the envs folder.
    """
    from provision.verbs.lock.inspection import verify_locks
    from provision.verbs.lock.output import verify_lines

    reports = verify_locks(context_of(console, envs, options), targets, offline=offline)
    for report in reports:
        for note in report.notes:
            console.info(f"{report.lock}: {note}")
    console.result("lock-verify", {"locks": reports}, verify_lines(reports))
    return int(any(report.findings for report in reports))


@lock.command()
@click.argument("target", metavar="NAME|FILE")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["explicit", "requirements", "pylock", "pixi"]),
    required=True,
    help=(
        "explicit: conda's list of files; requirements, pylock: the wheels, for pip and uv; "
        "pixi: a pixi.lock."
    ),
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    help="Platform to export.  [default: the only one, or linux-64; for pixi all]",
)
@output_file_option
@verb
def export(
    console: Console, target: str, envs: Path | None, output: Path | None, **options: Any
) -> None:
    """Write a lock in another tool's format. The same lock always gives the same bytes.

    Reports the packages and facts that the format cannot hold.
    """
    from provision.core.atomic import atomic_write
    from provision.verbs.lock.inspection import export_lock

    exported = export_lock(context_of(console, envs), target, **options)
    for note in exported.notes:
        console.info(f"{target}: {note}")
    document = {"path": output, **asdict(exported)}
    if output is None:
        console.document("lock-export", document, exported.text)
        return
    atomic_write(output, exported.text)
    console.result("lock-export", {**document, "text": None}, f"wrote {output}")
