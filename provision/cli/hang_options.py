"""The options with which `run` and `launch` watch ranks for hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from provision.cli.options import option_group

if TYPE_CHECKING:
    from provision.launch import OnHang

hang_options = option_group(
    click.option(
        "--hang-after",
        metavar="TIME",
        help=(
            "Report a hang when no rank has done anything for this long, such as 10m; 0 turns it "
            "off.  [default: 5m]"
        ),
    ),
    click.option(
        "--on-hang",
        type=click.Choice(("report", "end", "requeue")),
        help=(
            "What to do after a hang is reported: nothing more, end the job, or requeue it "
            "(Slurm).  [default: report]"
        ),
    ),
)


def parse_hang_options(time: str | None, on_hang: OnHang | None) -> tuple[int, OnHang]:
    """Seconds, 0: never; and what then. Raises InvalidSpec."""
    from provision.launch import HANG_AFTER_S, parse_duration

    seconds = HANG_AFTER_S
    if time == "0":
        seconds = 0
    elif time:
        seconds = parse_duration(time)
    return seconds, on_hang or "report"
