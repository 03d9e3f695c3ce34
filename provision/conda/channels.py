"""Requirements in conda's language, and which channels answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

from provision.conda.addresses import DIRECT, Mirrors, url_of
from provision.conda.calls import last_cause, run
from provision.model import PLATFORM, Platform

# Long enough for a slow mirror's first byte, short enough that a firewall that drops packets does not look like a hang.
ANSWER_TIMEOUT_S = 20.0


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


def name_of(spec: str) -> str:
    """The package that a requirement is about."""
    return re.split(r"[\s=<>!~\[]", spec.rpartition("::")[2].strip(), maxsplit=1)[0].lower()


def without_version(spec: str) -> str:
    """The same package from the same channel, in any version."""
    channel, separator, _ = spec.rpartition("::")
    return f"{channel}{separator}{name_of(spec)}"


def without_build(spec: str) -> str:
    """The same version in any build: `name=1.2=py_0` and `name ==1.2 py_0` are the two ways to ask for one."""
    channel, separator, rest = spec.rpartition("::")
    import rattler

    version = rattler.MatchSpec(rest).version
    return f"{channel}{separator}{name_of(spec)}" + (f" {version}" if version else "")


def pins_build(spec: str) -> bool:
    """Whether a requirement says which build of a version it wants."""
    import rattler

    return rattler.MatchSpec(spec.rpartition("::")[2]).build is not None


def is_version(text: str) -> bool:
    """Whether it is a version, perhaps with a build string after a space: how a virtual package is described."""
    import rattler

    try:
        rattler.Version(text.partition(" ")[0])
    except Exception:
        return False
    return True


def unanswered(channels: Sequence[str], mirrors: Mirrors = DIRECT, platform: Platform = PLATFORM) -> dict[str, str]:
    """Channels that did not serve repodata for a platform, each with the reason. Asks all, within ANSWER_TIMEOUT_S each."""
    return run(_ask({name: mirrors.real(url_of(name)) for name in channels}, platform))


async def _ask(real: dict[str, str], platform: Platform) -> dict[str, str]:
    import rattler
    from rattler.exceptions import GatewayError

    async def ask(name: str, url: str) -> tuple[str, str | None]:
        query = rattler.Gateway().query([rattler.Channel(url)], [platform, "noarch"], ["python"], recursive=False)
        try:
            await asyncio.wait_for(query, ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            return name, f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
        except GatewayError as error:
            return name, last_cause(error)
        return name, None

    answers = await asyncio.gather(*(ask(name, url) for name, url in real.items()))
    return {name: reason for name, reason in answers if reason is not None}
