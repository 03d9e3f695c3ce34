"""provision: one line becomes a locked, installed, imaged, smoke-tested and registered PyTorch environment."""

import os.path
import sys

__version__ = "0.2.0"

# The wheel's copy of provision_runtime: first, since it belongs to this version, whatever other
# version is installed here. In a checkout the package lies in its root.
_BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bundled")  # noqa: PTH100, PTH118, PTH120
if os.path.isdir(_BUNDLED):  # noqa: PTH112
    sys.path.insert(0, _BUNDLED)
