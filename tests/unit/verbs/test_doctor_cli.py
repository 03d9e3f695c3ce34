"""`provision doctor`: its words, exit codes and mistakes. The runtime examines this machine for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli


def doctor(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *words], env=variables)


def test_this_machine() -> None:
    result = doctor("--only", "nccl-setting", NCCL_P2P_DISABLE="1")
    assert result.exit_code == 0, result.output
    assert "nccl-setting: NCCL_P2P_DISABLE=1 (environment)" in result.stdout


def test_variables_of_the_user_are_judged_and_do_not_break_doctor(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the module of the user')")
    (tmp_path / "libcudnn.so.8").write_text("")
    words = ("--only", "pythonpath-on-path", "--only", "library-path")
    result = doctor(*words, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    assert "pythonpath-on-path: " in result.stdout
    assert "library-path: LD_LIBRARY_PATH has libcudnn.so.8" in result.stdout


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes=4 train.py\n")
    result = doctor("script", str(script))
    assert result.exit_code == 1
    assert "node-count-fixed: line 3 says 4 nodes, #SBATCH --nodes says 2" in result.stdout
    result = doctor("script", str(tmp_path / "no.sbatch"))
    assert (result.exit_code, "There is no file" in result.output) == (3, True)
    result = doctor("script", str(tmp_path))
    assert (result.exit_code, "not a folder" in result.output) == (3, True)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("a", "b"), 2),
        (("script",), 2),
        (("--on", "exec:n1", "--fix"), 2),
        (("--prefix", "/nowhere"), 3),
        (("nowhere",), 9),
    ],
)
def test_wrong_words(words: tuple[str, ...], status: int) -> None:
    assert doctor(*words).exit_code == status


def test_a_mistyped_finding() -> None:
    result = doctor("--only", "shm-smal")
    assert result.exit_code == 3
    assert "docs/findings.md" in result.output
