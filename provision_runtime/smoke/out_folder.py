"""One run at a time has a folder for its report: two worlds would mix their files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .options import UsageError

# Held open, and so locked, until this process ends.
_claimed: list[int] = []


def claim(out: Path) -> None:
    """Locks the folder for this run. Raises UsageError if another run has it.

    flock(2) on the folder itself leaves no file behind. A file system without locks cannot show it.
    """
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(str(out), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(folder)
        raise UsageError(
            f"--out {out}: another smoke test is writing there; give each run a separate folder"
        ) from error
    except OSError:
        os.close(folder)
        return
    _claimed.append(folder)
