"""`doctor` on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..doctor import command
from . import store as stores
from .errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..report.diagnosis import Diagnosis


def diagnose(
    prefix: str | None,
    only: Sequence[str],
    is_deep: bool,
    rules: Mapping[str, str] = stores.NO_RULES,
) -> Diagnosis:
    """The document of a diagnosis. prefix: where the environment is active on this node; None for
    the node alone. rules: of nodes.yml. Raises NodeError (not-here, not-installed, unsafe-store)."""
    if prefix is not None:
        if not os.path.lexists(prefix):
            raise NodeError("not-here", f"there is no {prefix}")
        # After a restart the folder is there, and the image is not mounted at it.
        if not os.path.isdir(os.path.join(prefix, "bin")):
            raise NodeError("not-installed", f"{os.path.realpath(prefix)} is not mounted, or empty")
        stores.require_safe_path(stores.Store(prefix, rules), f"{prefix}/bin/python")
    return command.examine(prefix or "", only, is_deep, has_peers=True)
