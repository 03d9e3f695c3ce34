"""`doctor` on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..doctor import command
from .errors import NodeError
from .store import Store
from .store_access import require_safe_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..report.diagnosis import Diagnosis
    from .results import Texts


def diagnose(prefix: str | None, only: Sequence[str], rules: Texts) -> Diagnosis:
    """The document of a diagnosis. prefix: where the environment is active on this node; None for
    the node alone. rules: of nodes.yml. Raises NodeError (not-here, not-installed, unsafe-store)."""
    if prefix is not None:
        if not os.path.lexists(prefix):
            raise NodeError("not-here", f"there is no {prefix}")
        # After a restart the folder is there, and the image is not mounted at it.
        if not os.path.isdir(os.path.join(prefix, "bin")):
            raise NodeError("not-installed", f"{os.path.realpath(prefix)} is not mounted, or empty")
        require_safe_path(Store(prefix, rules), f"{prefix}/bin/python")
    return command.examine(prefix or "", only, has_peers=True)
