"""Options of a request say the same as the keys of spec.yml."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from provision.core.spec_fields import SPEC_KEYS
from provision.resolver import spec
from provision.verbs.build import command as build
from provision.verbs.lock.command import make_lock

ASKED: list[dict[str, Any]] = [
    {"torch": "2.3.1", "cuda": "12.1"},
    {"torch": "2.13", "cpu": True, "companions": False},
    {
        "torch": "2.6",
        "cuda": "12.6",
        "python": "3.11",
        "source": "conda-forge",
        "channels": ["lab/label/x", "conda-forge"],
        "conda": ["ffmpeg=7.*", "zlib >=1.2,<2"],
        "pip": ["einops>=0.7,<1", "x[extra]~=1.0"],
        "base": "debian:bookworm-slim",
        "python_from": "channel",
    },
    {
        "torch": ">=2.3,<2.6",
        "cuda": "auto",
        # As the table calls it: options take nvidia-smi's longer names too, and say so.
        "gpu": ["H100", "A100"],
        "driver": "535.54.03",
        "glibc": "2.28",
        "platforms": ["linux-64", "linux-aarch64"],
    },
]


def command_line_options(content: dict[str, Any]) -> Iterator[str]:
    """The command line that requests the same as a spec.yml with this content."""
    for key in SPEC_KEYS:
        value = content.get(key.name)
        if isinstance(value, bool):
            yield key.option if value else key.negative_option
        elif value is not None:
            for item in value if isinstance(value, list) else [value]:
                yield f"{key.option}={item}"


@pytest.mark.parametrize("spec_options", ASKED)
@pytest.mark.parametrize("verb", [make_lock, build.build])
def test_options_give_the_same_as_the_spec(spec_options: dict[str, Any], verb: Any) -> None:
    message = shlex.split(shlex.join(command_line_options(spec_options)))
    parsed = verb.make_context(verb.name, ["lab", *message]).params
    assert spec.combine(
        {}, {key: parsed[key] for key in spec.KEYS if key in parsed}, name="lab"
    ) == spec.combine(spec_options, {}, name="lab")
