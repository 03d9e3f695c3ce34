"""Channels by name or URL, requirements in conda's language, and which channels answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from provision.conda.calls import last_cause, run
from provision.errors import InvalidSpec
from provision.model import PLATFORM

if TYPE_CHECKING:
    import rattler

# Long enough for a slow mirror's first byte, short enough that a firewall that drops packets does not look like a hang.
ANSWER_TIMEOUT_S = 20.0


def channel(name: str, alias: str | None = None) -> rattler.Channel:
    """A channel by name or URL; names are looked up under `alias` (rattler's own default when None)."""
    import rattler

    try:
        config = rattler.ChannelConfig(channel_alias=alias.rstrip("/") + "/") if alias else None
        return rattler.Channel(name, config)
    except Exception as error:
        raise InvalidSpec(f"`{name}` is not a channel: {error}.") from error


def check_specs(specs: Iterable[str]) -> list[str]:
    """The mistakes in conda requirements, one sentence each."""
    import rattler

    mistakes = []
    for spec in specs:
        try:
            rattler.MatchSpec(spec)
        except Exception as error:
            mistakes.append(f"`{spec}` is not a conda requirement: {str(error).splitlines()[0]}.")
    return mistakes


def unanswered(channels: Sequence[str], alias: str | None = None) -> dict[str, str]:
    """Channels that did not serve repodata for our platform, each with the reason. Asks all, within ANSWER_TIMEOUT_S each."""
    return run(_ask(channels, alias))


async def _ask(channels: Sequence[str], alias: str | None) -> dict[str, str]:
    import rattler
    from rattler.exceptions import GatewayError

    async def ask(name: str) -> tuple[str, str | None]:
        query = rattler.Gateway().query([channel(name, alias)], [PLATFORM, "noarch"], ["python"], recursive=False)
        try:
            await asyncio.wait_for(query, ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            return name, f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
        except GatewayError as error:
            return name, last_cause(error)
        return name, None

    answers = await asyncio.gather(*(ask(name) for name in channels))
    return {name: reason for name, reason in answers if reason is not None}
