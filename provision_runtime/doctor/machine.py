"""What probes may read: files and tools below a root, the user's variables and home.

Probes reach the machine only through this, so a folder with the files and tools of another machine
can stand for it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ..dataclass import frozen
from ..facts import libraries
from ..fs.files import read_text

if TYPE_CHECKING:
    from ..facts.model import PciGpu

REAL_ROOT = Path("/")
# A shell that ssh or a scheduler starts often has a shorter PATH than a login shell.
MORE_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
# Without persistence mode, nvidia-smi needs seconds to wake the GPUs.
TOOL_S = 10.0


@frozen
class ToolOutput:
    """text: standard output and standard error together."""

    status: int
    text: str


@frozen
class Machine:
    """prefix: of the environment to examine. has_peers: jobs of this host span other hosts."""

    root: Path = REAL_ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    home: str = "/"
    prefix: str | None = None
    has_peers: bool = False

    @property
    def is_real(self) -> bool:
        """Whether this is the machine that this process runs on, and not a captured one."""
        return self.root == REAL_ROOT

    def path(self, path: str) -> Path:
        """The real path of a path of this machine."""
        return self.root / path.lstrip("/")

    def name(self, path: Path) -> str:
        """A real path as this machine names it."""
        return str(path) if self.is_real else f"/{path.relative_to(self.root)}"

    def variable(self, name: str) -> str:
        """A variable of the user's; empty if it is not set."""
        return self.environment.get(name, "")

    def library_path(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH."""
        entries = self.variable("LD_LIBRARY_PATH").replace(";", ":").split(":")
        return list(filter(os.path.isabs, entries))

    def gpus(self) -> list[PciGpu]:
        return libraries.pci_gpus(self.root)

    def read(self, path: str) -> str:
        """The text of a file; empty if it is not there or not readable."""
        return read_text(self.path(path))

    def glob(self, folder: str, pattern: str) -> list[Path]:
        return sorted(self.path(folder).glob(pattern))

    def which(self, name: str, only_on_path: bool = False) -> str | None:
        """only_on_path: where the user's programs would find it."""
        if not self.is_real:
            folders = [str(self.root / "bin")]
        else:
            more = () if only_on_path else MORE_FOLDERS
            folders = [self.environment.get("PATH", ""), *more]
        return shutil.which(name, path=os.pathsep.join(folders))

    def text(self, name: str, *arguments: str) -> str:
        """What a tool prints; empty if this machine lacks the tool."""
        output = self.run(name, *arguments)
        return output.text if output else ""

    def run(self, name: str, *arguments: str) -> ToolOutput | None:
        """A tool's output in English; None if this machine lacks the tool."""
        if (program := self.which(name)) is None:
            return None
        # A probe's standard input is empty, and /dev/null may be broken.
        child = subprocess.run(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TOOL_S,
            env={**self.environment, "LC_ALL": "C"},
        )
        return ToolOutput(child.returncode, child.stdout.decode(errors="replace"))


def this_machine(prefix: str | None = None, has_peers: bool = False) -> Machine:
    environment = dict(os.environ)
    if environment.get("HOME"):
        home = environment["HOME"]
    else:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # no such number in the user database
            home = "/"
    return Machine(REAL_ROOT, environment, home, prefix, has_peers)


def captured_machine(root: Path, prefix: str | None, has_peers: bool) -> Machine:
    """The machine whose files are below a folder; its variables are in proc/self/environ."""
    environment = {}
    for entry in read_text(root / "proc/self/environ").replace("\n", "\0").split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            environment[name] = value
    return Machine(root, environment, environment.get("HOME", "/root"), prefix, has_peers)
