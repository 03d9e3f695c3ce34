"""What is asked for, worked out as far as needs no channel: options over a spec.yml, this machine where the newest CUDA is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision import resolver
from provision.core import machine
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.spec_fields import Spec
from provision.core.types import Machine, Resolution
from provision.resolver import spec


def combined(path: Path, options: Mapping[str, Any], *, name: str) -> Spec:
    """Options over a spec.yml, if there is one."""
    file = spec.read(path) if path.exists() else {}
    wanted = spec.combine(file, options, name=name)
    if file.get("cuda") == "auto" and not options.get("cuda") and _needs_machine(wanted):
        raise _moving(path, wanted)
    return wanted


def checked(wanted: Spec) -> Spec:
    """The spec, if the solver's own parser takes the conda requirements in it."""
    if wanted.conda:
        from provision.adapters import conda

        if mistakes := conda.spec_errors(wanted.conda):
            raise InvalidSpec(" ".join(mistakes))
    return wanted


def resolved(wanted: Spec) -> Resolution:
    """The matrix's answer."""
    return resolver.resolve(wanted, machine_for(wanted))


def machine_for(wanted: Spec) -> Machine | None:
    """This machine, which is asked only where nothing else says for which one the newest CUDA is wanted."""
    return machine.this_machine() if _needs_machine(wanted) else None


def _needs_machine(wanted: Spec) -> bool:
    return wanted.cuda == "auto" and not (wanted.gpu or wanted.driver)


def _moving(path: Path, wanted: Spec) -> InvalidSpec:
    """A folder of environments is shared between machines, so what a file asks for must be the same on all of them."""
    try:
        found = resolved(wanted).cuda
        here = f'; on this one it is {found}: write cuda: "{found}", or'
    except ProvisionError:
        here = ": write a version, or"
    return InvalidSpec(
        f"{path}: `cuda: auto` alone means another CUDA on every machine{here} say which machine is meant with `gpu` and `driver`.",
        advice="`--cuda auto` on the command line is for this machine, and the first build writes what it came to.",
    )
