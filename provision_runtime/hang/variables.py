"""The environment variables with which ranks can be asked why they hang."""

from __future__ import annotations

# The light record of collectives (`record.py`): set by `--record`.
RECORD = "PROVISION_RECORD"


def rank_variables(torch_version: str, *, record: bool = False) -> dict[str, str]:
    """What the environment of every rank should have, unless the user has set it.

    torch's flight recorder, by the names of this version of torch, and a pipe to ask for its dump.
    """
    raise NotImplementedError
