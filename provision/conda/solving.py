"""Requirements -> exactly the packages that satisfy them, from the channels' records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.conda.calls import last_cause, run
from provision.conda.channels import channel
from provision.errors import IntegrityError, Unreachable, Unsolvable
from provision.model import PLATFORM, LockedPackage

if TYPE_CHECKING:
    import rattler


def solve(
    specs: Sequence[str],
    channels: Sequence[str],
    virtual_packages: Sequence[tuple[str, str]],
    *,
    bounds: Sequence[str] = (),
    alias: str | None = None,
) -> tuple[LockedPackage, ...]:
    """Solve requirements against channels, in order of priority. Raises Unsolvable or Unreachable; never returns a part.

    bounds: requirements that hold for a package if it becomes part of the answer, but do not ask for it.
    """
    import rattler
    from rattler.exceptions import GatewayError, SolverError
    from rattler.package.build_string import BuildString

    sources = [channel(name, alias) for name in channels]
    virtual = [
        rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), BuildString("0"))
        for name, version in virtual_packages
    ]
    try:
        records = run(
            rattler.solve(
                sources,
                [rattler.MatchSpec(_qualified(spec, alias)) for spec in specs],
                platforms=[PLATFORM, "noarch"],
                virtual_packages=virtual,
                constraints=[rattler.MatchSpec(bound) for bound in bounds],
            )
        )
    except SolverError as error:
        raise Unsolvable(
            f"No set of packages in {', '.join(channels)} satisfies {', '.join(specs)}.",
            advice="Loosen a requirement, or name a channel that has the package with --channel; -v shows the solver's words.",
            details=str(error),
        ) from error
    except GatewayError as error:
        raise Unreachable(
            f"A channel among {', '.join(channels)} did not answer: {last_cause(error)}.",
            advice="Check the network, or name a mirror with --channel-alias or --channel.",
            details=str(error),
        ) from error
    return tuple(sorted((_locked(record) for record in records), key=lambda package: package.name))


def _qualified(spec: str, alias: str | None) -> str:
    """`channel::package` means the channel under our alias; rattler would look it up under its own."""
    name, separator, rest = spec.partition("::")
    return f"{alias.rstrip('/')}/{name}::{rest}" if alias and separator and "://" not in name else spec


def _locked(record: rattler.RepoDataRecord) -> LockedPackage:
    if record.sha256 is None or record.md5 is None:
        raise IntegrityError(
            f"{record.url} has no {'sha256' if record.sha256 is None else 'md5'} in its channel's repodata, so it cannot be locked.",
            advice="Ask the channel's owner to index it again, or use another channel.",
        )
    return LockedPackage(
        manager="conda",
        name=record.name.normalized,
        version=str(record.version),
        url=record.url,
        sha256=record.sha256.hex(),
        md5=record.md5.hex(),
        build=str(record.build),
        depends=tuple(record.depends),
    )
