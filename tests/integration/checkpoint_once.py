"""A checkpoint of step 1, saved once more with half of it changed: the program whose calls a test looks at."""

from __future__ import annotations

import sys
from pathlib import Path

from provision_runtime import checkpoint
from tests.integration.checkpoint_faults import state

if __name__ == "__main__":
    for tag in (10, 11):
        checkpoint.save(state(tag), Path(sys.argv[1]), step=1)
    print("{}")
