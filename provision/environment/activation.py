"""Prefix -> the variables that activate it, for kernels and for programs that are started
without a shell.
"""

from __future__ import annotations

from provision.core.types import Prefix

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def activation_variables(prefix: Prefix) -> dict[str, str]:
    """What a shell's activation would set.

    PYTHONNOUSERSITE keeps packages of ~/.local out (conda/conda#7173). PYTHONPATH and
    LD_LIBRARY_PATH are emptied: either can put other builds of torch's libraries first
    (pytorch/pytorch#80637).
    """
    return {
        "CONDA_PREFIX": str(prefix.path),
        "CONDA_DEFAULT_ENV": prefix.name,
        "PATH": f"{prefix.path / 'bin'}:{SYSTEM_PATH}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
        "LD_LIBRARY_PATH": "",
        "PROVISION_LOCK_HASH": prefix.lock_sha256,
    }
