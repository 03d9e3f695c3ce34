"""What an installation of provision takes: packages, disk with and without byte code, and the CPU of installing it.

Usage: python benchmarks/bench_install.py   (from a clone; wheels come from the index of your settings, or uv's cache)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from measure import box, seconds

CLONE = Path(__file__).resolve().parents[1]


def main() -> None:
    uv = str(Path(sys.executable).parent / "uv")
    place = box() / "install"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([uv, "venv", "--quiet", str(place)], check=True)
    python = str(place / "bin" / "python")
    install = [uv, "pip", "install", "--quiet", "--link-mode", "copy", "--python", python]
    wall, cpu = seconds([*install, str(CLONE)])
    packages = list(place.glob("lib/python3*/site-packages/*.dist-info"))
    size = megabytes(place)
    seconds([python, "-m", "compileall", "-q", str(place)], check=False)  # templates are no modules
    print(f"packages       {len(packages)}")
    print(f"disk           {size:.0f} MB; {megabytes(place):.0f} MB with byte code")
    print(f"installing it  {cpu:.1f} s CPU, {wall:.1f} s wall")


def megabytes(folder: Path) -> float:
    """The bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


if __name__ == "__main__":
    main()
