"""mksquashfs: the one door to it. The same tree gives the same image, byte for byte, with the same
version of squashfs-tools."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

from provision.core.errors import ToolFailed, ToolMissing
from provision.core.host import usable_cpus
from provision.core.process import clean_environment, run
from provision.core.system_errors import tool_without_space

SquashfsCompression = Literal["zstd", "lz4"]
COMMAND = "mksquashfs"
# Some distributions keep it where users' PATH does not look.
_ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# 4.4 (2019) is the first that writes the same bytes twice, and that knows zstd.
OLDEST = (4, 4)
_OPTIONS: dict[SquashfsCompression, tuple[str, ...]] = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "3"),
    "lz4": ("-comp", "lz4"),
}
# Larger blocks compress better, and a read of a few bytes has to decompress a whole one. Measured
# with torch 2.3.1+cu121: see benchmarks/README.md.
BLOCK = "256K"
# By default it takes a quarter of the machine's memory, also of a login node's.
MEMORY = "1G"
_INSTALL = (
    "Install squashfs-tools (apt or dnf install squashfs-tools, or conda install -c conda-forge "
    "squashfs-tools), or pack with --format tar, which nodes have to unpack."
)


def version() -> str:
    """The version of mksquashfs, such as 4.5.1. Raises ToolMissing if there is none that we can
    use."""
    printed = run([_command(), "-version"], check=False).stdout
    match = re.search(r"mksquashfs version (\d+)\.(\d+)([\w.-]*)", printed)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        raise ToolMissing(
            f"Packs need {COMMAND} 4.4 or newer; `{COMMAND} -version` printed "
            f"`{printed.partition(chr(10))[0]}`.",
            advice=_INSTALL,
        )
    return f"{match[1]}.{match[2]}{match[3]}"


def make_image(tree: Path, target: Path, compression: SquashfsCompression, *, time: int) -> None:
    """Write a tree as a squashfs image, with this time on every file and root as their owner.

    Raises NoSpace on a full disk; ToolMissing without mksquashfs, or if it lacks the compression.
    """
    command: list[str | Path] = [_command(), tree, target, *_OPTIONS[compression], "-b", BLOCK]
    command += ["-noappend", "-no-recovery", "-no-progress", "-quiet"]
    # A file that cannot be read would become an empty one.
    command += ["-exit-on-error"]
    command += ["-all-root", "-no-xattrs", "-all-time", str(time), "-mkfs-time", str(time)]
    command += ["-processors", str(usable_cpus()), "-mem", MEMORY]
    environment = clean_environment({"LC_ALL": "C"})
    environment.pop("SOURCE_DATE_EPOCH", None)  # it excludes the options for times
    try:
        run(command, env=environment)
    except ToolFailed as error:
        if no_space := tool_without_space(error.tail, target.parent):
            raise no_space from error
        if "is not supported" in error.tail:
            raise ToolMissing(
                f"This mksquashfs was built without {compression}.",
                advice="Use the other one (--compression zstd or lz4) or --format tar.",
                details=error.tail,
            ) from error
        raise


def _command() -> str:
    folders = [os.environ.get("PATH", os.defpath), *_ADMIN_FOLDERS]
    command = shutil.which(COMMAND, path=os.pathsep.join(folders))
    if command is None:
        raise ToolMissing(f"There is no {COMMAND} on this machine.", advice=_INSTALL)
    return command
