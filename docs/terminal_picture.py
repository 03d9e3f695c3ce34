"""Pictures of a terminal: commands that run as a user's, and what they print, as SVG.

The commands run on a terminal of 80 columns with colors, in a home folder of their own.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 80
PROJECT = {
    "environment.yml": """\
name: vision
channels: [pytorch, nvidia, conda-forge]
dependencies:
  - python=3.11
  - pytorch=2.3
  - pytorch-cuda=12.1
  - ffmpeg
  - pip:
      - einops
      - wandb
""",
    "train.py": "import torch\n",
}


class Machine:
    """A user's home folder, with a folder of a project in it, and one that is empty."""

    def __init__(self, root: Path) -> None:
        self.home = root / "ann"
        for name, files in {"vision": PROJECT, "empty": {}}.items():
            folder = self.home / name
            folder.mkdir(parents=True)
            for file, text in files.items():
                (folder / file).write_text(text)
        bin_folder = Path(sys.executable).parent
        self.env = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "COLUMNS": str(COLUMNS),
            "LANG": "C.UTF-8",
            "DOCKER_HOST": "unix:///nonexistent/docker.sock",
        }


def picture(commands: list[str], machine: Machine, folder: str | None) -> str:
    """What the commands print, one after the other, as on a terminal. Raises RuntimeError if a
    command does not exist: exit codes of checks and refusals are part of the picture."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        output, exit_code = run(command, machine, machine.home / (folder or "empty"))
        if exit_code in (2, 126, 127):
            raise RuntimeError(f"`{command}` ended with {exit_code}:\n{output}")
        console.print(Text.from_ansi(output.rstrip("\n")))
    svg = console.export_svg(title="", theme=MONOKAI, unique_id=f"t{len(commands[0])}-{COLUMNS}")
    # Its font would come from another host.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace")
    svg = svg.replace("#f4005f", "#ff6b95")  # the theme's red is too dark on its black
    return "\n".join(line for line in svg.splitlines() if line.strip())


def run(command: str, machine: Machine, folder: Path) -> tuple[str, int]:
    """The output of a command on a terminal, and its exit code."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    shell = shutil.which("bash") or "/bin/sh"
    child = subprocess.Popen(
        [shell, "-c", command],
        cwd=folder,
        env=machine.env,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    pieces = []
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(controller)
    text = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n")
    # A progress bar is drawn over itself, and erased at its end.
    text = re.sub(r"(?:^|(?<=\n))[^\n]*\r(?!\n)", "", text)
    return re.sub(r"\x1b\[\??[0-9;]*[A-HJKSThlfu]", "", text), child.wait()
