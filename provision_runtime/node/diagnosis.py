"""`doctor` on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..doctor import command
from .errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Sequence


def diagnose(prefix: str | None, only: Sequence[str], is_deep: bool) -> dict[str, Any]:
    """The document of a diagnosis. prefix: where the environment is active on this node; None for
    the node alone. Raises NodeError (not-here, not-installed)."""
    if prefix is not None:
        if not os.path.lexists(prefix):
            raise NodeError("not-here", f"there is no {prefix}")
        # After a restart the folder is there, and the image is not mounted at it.
        if not os.path.isdir(os.path.join(prefix, "bin")):
            raise NodeError("not-installed", f"{os.path.realpath(prefix)} is not mounted, or empty")
    return command.examine(prefix or "", only, is_deep, has_peers=True)
