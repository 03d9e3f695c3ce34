"""Which network interface a backend's variable names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

INTERFACE_VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


def configured_interface(
    backend: str, environment: Mapping[str, str], available: Sequence[str]
) -> str | None:
    """The first interface that the backend's variable names; None if it leaves the choice to the
    backend. Raises LookupError if none of them exists.

    Gloo takes whole names; NCCL takes prefixes, whole names after `=`, and exclusions after `^`
    (NCCL's environment variables).
    """
    variable = INTERFACE_VARIABLES.get(backend, "")
    if not (value := environment.get(variable, "")) or value.startswith("^"):
        return None
    is_whole_name = backend == "gloo" or value.startswith("=")
    for name in value.lstrip("=").split(","):
        for interface in available:
            if interface == name or (not is_whole_name and interface.startswith(name)):
                return interface
    raise LookupError(f"{variable}={value}, but there are only {', '.join(available)}")
