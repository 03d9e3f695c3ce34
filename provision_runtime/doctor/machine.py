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

from ..dataclass import frozen
from ..fs.files import read_text

REAL_ROOT = Path("/")
# A shell that ssh or a scheduler starts often has a shorter PATH than a login shell.
MORE_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
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

    def run(self, name: str, *arguments: str, timeout_s: float = TOOL_S) -> ToolOutput | None:
        """A tool's output in English; None if this machine lacks the tool."""
        program = self.which(name)
        if program is None:
            return None
        # A probe's standard input is empty, and /dev/null may be broken.
        child = subprocess.run(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
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
    text = read_text(root / "proc/self/environ")
    for entry in text.replace("\n", "\0").split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            environment[name] = value
    home = environment.get("HOME", "/root")
    return Machine(root, environment, home, prefix, has_peers)
