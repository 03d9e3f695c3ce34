"""provision: one line becomes a locked, installed, imaged, smoke-tested and registered PyTorch environment."""

import sys
from pathlib import Path

__version__ = "0.2.0"

# The wheel's copy of provision_runtime: first, since it belongs to this version, whatever other
# version is installed here. In a checkout the package lies in its root.
_BUNDLED = Path(__file__).parent / "_bundled"
if _BUNDLED.is_dir():
    sys.path.insert(0, str(_BUNDLED))
