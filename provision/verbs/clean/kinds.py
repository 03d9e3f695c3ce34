"""What `clean` removes."""

from __future__ import annotations

from typing import Literal, get_args

# cache: can be downloaded or compiled again. unfinished: of builds that were killed. temporary: of killed
# processes. environment: its folder in envs was deleted. image, pack, smoke, kernel: of an
# environment that is neither installed nor described. channel: this machine's Python, which no lock names.
Kind = Literal[
    "cache",
    "unfinished",
    "temporary",
    "environment",
    "image",
    "pack",
    "smoke",
    "kernel",
    "channel",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
