"""`provision run` with a command that starts ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from provision.core.types import Prefix
from provision.verbs.run.run import launcher_words, watched_launch


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 train.py"),
        ("python -m torch.distributed.run train.py", "-m torch.distributed.run train.py"),
        ("python3.11 -m torch.distributed.launch a.py", "-m torch.distributed.launch a.py"),
        ("accelerate launch train.py", "accelerate launch train.py"),
        ("accelerate config", None),
        ("fabric run train.py", "fabric run train.py"),
        ("python train.py", None),
        ("python -m lab.train", None),
        ("python -c torchrun", None),
        ("bash -c torchrun", None),
        ("python", None),
    ],
)
def test_commands_that_start_ranks(command: str, words: str | None) -> None:
    assert launcher_words(command.split()) == (words.split() if words else None)


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    (tmp_path / "bin").mkdir()
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.write_text(f"#!{tmp_path}/bin/python\n")
    torchrun.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return Prefix(name="lab", path=tmp_path, lock_sha256="ab")


def test_the_launcher_runs_in_a_process_that_reports(prefix: Prefix) -> None:
    launch = watched_launch(prefix, ["torchrun", "train.py", "--lr=1"], {}, 90, "end")
    assert launch is not None
    assert launch.argv[0] == str(prefix.python)
    options = ["launcher", "--hang-after=90", "--on-hang=end", "--"]
    assert launch.argv[3:] == [*options, str(prefix.path / "bin/torchrun"), "train.py", "--lr=1"]


def test_a_torchrun_of_another_environment_stays_itself(prefix: Prefix) -> None:
    (prefix.path / "bin" / "torchrun").unlink()
    assert watched_launch(prefix, ["torchrun", "train.py"], {}, 90, "report") is None
