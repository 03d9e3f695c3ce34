"""Two runs do not share a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provision_runtime.smoke import options, out_folder

HOLD = """
import sys
from pathlib import Path
from provision_runtime.smoke import out_folder
out_folder.claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_folder_belongs_to_one_run_until_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(options.UsageError, match="another smoke test is writing there"):
            out_folder.claim(out)
        other.kill()
        other.wait()
    out_folder.claim(out)
    assert list(out.iterdir()) == []
