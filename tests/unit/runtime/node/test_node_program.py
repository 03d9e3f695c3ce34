"""The program for nodes: complete, silent about everything but its answer, and readable by old Pythons."""

from __future__ import annotations

import ast
import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provision.cluster import program
from provision.cluster.program import node_command, node_program
from provision_runtime.node.program import ACTIONS, MARK, SIMULATED_NAME, SLURM_NODE

NONE: Mapping[str, str] = {}
RAISING = """
from .errors import NodeError
def fail(reason):
    if reason == "bug":
        raise KeyError("bug")
    if reason == "node":
        raise NodeError("disk-full", "no space on /x")
    open(reason)
def echo(**arguments):
    return arguments
"""


def run_program(
    text: bytes,
    command: str | None = None,
    *,
    folder: Path,
    data: bytes = b"",
    variables: Mapping[str, str] = NONE,
) -> subprocess.CompletedProcess[bytes]:
    shell_command = command or node_command(python=shlex.quote(sys.executable))
    return subprocess.run(
        ["sh", "-c", shell_command],
        input=text + data,
        capture_output=True,
        cwd=folder,
        env={**os.environ, **variables},
    )


def answer_in(result: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    lines = [line for line in result.stdout.decode().splitlines() if line.startswith(MARK)]
    assert len(lines) == 1, result
    document = json.loads(lines[0][len(MARK) :])
    assert isinstance(document, dict)
    return document


@pytest.fixture
def test_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more actions, in a module that exists in no file of ours."""
    own_sources = program._sources

    def sources(modules: list[str]) -> dict[str, str]:
        test_module = f"{program.PACKAGE}.node.test_module"
        found = own_sources([name for name in modules if name != test_module])
        if test_module in modules:
            found[test_module] = RAISING
            program_source = found[program.PROGRAM]
            found[program.PROGRAM] = program_source.replace(
                "ACTIONS = {", 'ACTIONS = {"fail": "test_module:fail", "echo": "test_module:echo",'
            )
        return found

    monkeypatch.setattr(program, "_sources", sources)
    monkeypatch.setitem(ACTIONS, "fail", "test_module:fail")
    monkeypatch.setitem(ACTIONS, "echo", "test_module:echo")
    program._modules_text.cache_clear()


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_program_of_every_action_has_all_its_modules(action: str, tmp_path: Path) -> None:
    """It is imported by a Python that has nothing of ours, in an empty folder."""
    module, _, function = ACTIONS[action].partition(":")
    header = program._modules_text(action)
    check = f"module = importlib.import_module('provision_runtime.node.{module}'); print(callable(module.{function}))"
    result = run_program(header + check.encode(), folder=tmp_path)
    assert result.stdout == b"True\n", result.stderr.decode()


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_program_is_readable_by_any_python(action: str) -> None:
    text = node_program(action, {"path": "/ü"}).decode("ascii")
    ast.parse(text, feature_version=(3, 4))
    header = text.partition("class ProgramModules")[0]
    assert "f'" not in header
    assert 'f"' not in header


def test_program_has_only_what_its_action_needs() -> None:
    sources = program._sources([program.PROGRAM, f"{program.PACKAGE}.node.facts"])
    assert f"{program.PACKAGE}.facts.libraries" in sources
    assert not [name for name in sources if ".smoke" in name or ".checkpoint" in name]


def test_facts_of_this_machine(tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path), "rules": {"readers": "me"}}
    result = run_program(node_program("facts", arguments), folder=tmp_path)
    answer = answer_in(result)
    assert answer["result"]["store"]["existing"] == str(tmp_path)
    assert answer["result"]["store"]["problem"] is None
    assert answer["result"]["unread"] == {}
    assert result.stderr == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("test_action")
def test_errors_become_reasons(tmp_path: Path) -> None:
    def error_of(reason: str) -> Mapping[str, str]:
        text = node_program("fail", {"reason": reason})
        error = answer_in(run_program(text, folder=tmp_path))["error"]
        assert isinstance(error, dict)
        return error

    assert error_of("node") == {"reason": "disk-full", "message": "no space on /x"}
    missing = str(tmp_path / "missing")
    assert error_of(missing)["reason"] == "no-such-path"
    assert missing in error_of(missing)["message"]


@pytest.mark.usefixtures("test_action")
def test_bug_on_the_node_is_no_answer(tmp_path: Path) -> None:
    result = run_program(node_program("fail", {"reason": "bug"}), folder=tmp_path)
    assert MARK.encode() not in result.stdout
    assert result.returncode == 1
    assert b"KeyError: 'bug'" in result.stderr


@pytest.mark.usefixtures("test_action")
def test_arguments_arrive_as_they_were(tmp_path: Path) -> None:
    arguments = {"text": "ü'\"\\\n%h {}", "numbers": [1, 2.5, None, True]}
    result = run_program(node_program("echo", arguments), folder=tmp_path)
    assert answer_in(result)["result"] == arguments


@pytest.mark.usefixtures("test_action")
def test_simulated_node_fills_in_its_name(tmp_path: Path) -> None:
    text = node_program("echo", {"path": "/stores/%h", "size": 1})
    answer = answer_in(run_program(text, folder=tmp_path, variables={SIMULATED_NAME: "n7"}))
    assert answer["result"] == {"path": "/stores/n7", "size": 1}
    assert answer["identity"][0] == "n7"


@pytest.mark.usefixtures("test_action")
def test_slurm_node_is_identified_by_slurms_name(tmp_path: Path) -> None:
    """Several slurmd may run on one machine."""
    result = run_program(node_program("echo", {}), folder=tmp_path, variables={SLURM_NODE: "n3"})
    assert answer_in(result)["identity"][0] == "n3"


def test_data_may_follow_the_program(tmp_path: Path) -> None:
    text = b"import sys; print(sys.stdin.buffer.read().decode())"
    command = node_command(len(text), python=shlex.quote(sys.executable))
    result = run_program(text, command, folder=tmp_path, data=b"data after it")
    assert result.stdout == b"data after it\n"


def test_modules_of_the_current_folder_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    result = run_program(node_program("facts", {"path": "/", "rules": {}}), folder=tmp_path)
    assert "result" in answer_in(result)


def test_noise_before_the_answer_does_no_harm(tmp_path: Path) -> None:
    command = "printf 'Welcome, no line end'; " + node_command(python=shlex.quote(sys.executable))
    result = run_program(
        node_program("facts", {"path": "/", "rules": {}}), command, folder=tmp_path
    )
    assert "result" in answer_in(result)


def test_threads_make_programs_at_once() -> None:
    """As `ship --tree 0` does. Python 3.11 cannot parse in several threads at once: they change
    places where the collector runs, which is often here."""
    before, threshold = sys.getswitchinterval(), gc.get_threshold()

    def python_code(*_: object) -> None:
        """While it runs, another thread may take its turn."""

    gc.callbacks.append(python_code)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    program._modules_text.cache_clear()
    try:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: node_program("store-release", {}), range(8)))
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(python_code)
    assert len(set(made)) == 1


def test_the_program_has_the_data_of_its_modules(tmp_path: Path) -> None:
    """The rules of findings and the catalogs are JSON beside the modules; there are no files."""
    arguments: dict[str, Any] = {"prefix": None, "only": ["gpu-xid"], "rules": {}}
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:1b:00): 79, lost'\n")
    (tmp_path / "dmesg").chmod(0o755)
    result = run_program(
        node_program("doctor", arguments),
        folder=tmp_path,
        variables={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    [finding] = answer_in(result)["result"]["findings"]
    assert (finding["id"], finding["evidence"][0]["source"]) == ("gpu-xid", "dmesg")
