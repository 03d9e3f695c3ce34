"""Faults of batch scripts and training programs, from their text: nothing is run.

Reads a script as far as these faults need it: options of sbatch, logical lines, and what the shell
expands. A script that builds its commands otherwise is not understood, and gives no finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .probe import Observation, observation
from .program_source import read_program
from .programs import examine_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Slurm's variables that differ between the tasks of a step.
TASK_VARIABLES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
# srun did not take over --cpus-per-task from 22.05 on; 23.11 does again.
FORGETS_CPUS = ((22, 5), (23, 11))
# Options of sbatch and srun that take no value, or only one after `=`.
WITHOUT_VALUE = (
    "--exact",
    "--exclusive",
    "--kill-on-bad-exit",
    "--label",
    "--no-kill",
    "--no-requeue",
    "--overlap",
    "--oversubscribe",
    "--pty",
    "--quiet",
    "--requeue",
    "--unbuffered",
    "--verbose",
    "-K",
    "-Q",
    "-k",
    "-l",
    "-s",
    "-u",
    "-v",
)
# One-letter options of sbatch and srun.
LONG_NAMES = {"-N": "--nodes", "-c": "--cpus-per-task", "-n": "--ntasks", "-G": "--gpus"}


@dataclass(frozen=True)
class ScriptLine:
    """A logical line: with those that continue it."""

    number: int
    text: str


@dataclass(frozen=True)
class BatchScript:
    name: str
    options: dict[str, str]
    lines: tuple[ScriptLine, ...]

    @property
    def steps(self) -> list[ScriptLine]:
        """The lines that start a job step."""
        return [line for line in self.lines if re.search(r"(^|[\s;&|(])srun\s", line.text)]

    def evidence(self, line: ScriptLine) -> str:
        return f"{self.name}:{line.number}"


def examine(path: Path, slurm_version: str | None) -> list[Observation]:
    """What is wrong in a file. slurm_version: as `srun --version` prints it; None if unknown."""
    text = path.read_text(errors="replace")
    if path.suffix in (".py", ".ipynb"):
        return examine_program(read_program(path))
    script = parse(path.name, text)
    return [
        *_cpus(script, slurm_version),
        *_hidden_gpus(script),
        *_early_expansion(script),
        *_node_count(script),
    ]


def parse(name: str, text: str) -> BatchScript:
    options: dict[str, str] = {}
    lines = []
    pending, first_number = "", 0
    end_of_document = ""
    for number, raw in enumerate(text.splitlines(), 1):
        if end_of_document:
            if raw.strip() == end_of_document:
                end_of_document = ""
            continue
        if raw.startswith("#SBATCH"):
            options.update(parse_options(raw[len("#SBATCH") :]))
            continue
        if raw.lstrip().startswith("#"):
            continue
        first_number = first_number or number
        if raw.endswith("\\") or _is_open(pending + raw):
            pending += raw[:-1] + " " if raw.endswith("\\") else raw + "\n"
            continue
        lines.append(ScriptLine(first_number, pending + raw))
        # A quoted delimiter: the shell expands nothing in the document.
        document = re.search(r"<<-?\s*['\"](\w+)['\"]", raw)
        end_of_document = document[1] if document else ""
        pending, first_number = "", 0
    return BatchScript(name, options, tuple(lines))


def _is_open(text: str) -> bool:
    """True if a quotation continues in the next line."""
    states = [state for _, state in _quote_states(text)]
    return bool(states) and states[-1] != ""


def _quote_states(text: str) -> Iterator[tuple[int, str]]:
    """Each position that is not escaped, with the quotation around it: `'`, `"` or none."""
    state = ""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and state != "'":
            position += 2
            continue
        if character in "'\"":
            if not state:
                state = character
            elif state == character:
                state = ""
        yield position, state
        position += 1


def parse_options(text: str) -> dict[str, str]:
    """The options of sbatch, or of srun before its command: `--nodes=4 -c 8 --exclusive bash` as a
    dictionary of long names."""
    arguments = iter(text.partition(" #")[0].split())
    options = {}
    for argument in arguments:
        if not argument.startswith("-"):
            break
        name, equals, value = argument.partition("=")
        attached = re.fullmatch(r"(-[A-Za-z])(\S+)", argument)
        if attached:
            name, value = attached[1], attached[2]
        elif not equals and name not in WITHOUT_VALUE:
            value = next(arguments, "")
        options[LONG_NAMES.get(name, name)] = value
    return options


def _cpus(script: BatchScript, slurm_version: str | None) -> Iterator[Observation]:
    cpus = script.options.get("--cpus-per-task", "1")
    match = re.search(r"(\d+)\.(\d+)", slurm_version or "")
    version = (int(match[1]), int(match[2])) if match else FORGETS_CPUS[0]
    if cpus in ("", "1") or not FORGETS_CPUS[0] <= version < FORGETS_CPUS[1]:
        return
    if any("SRUN_CPUS_PER_TASK" in line.text for line in script.lines):
        return
    for step in script.steps:
        options = parse_options(step.text.partition("srun ")[2])
        if "--cpus-per-task" not in options:
            message = f"--cpus-per-task={cpus} is not passed to srun in line {step.number}"
            yield observation("srun-cpus", message, script.evidence(step), _one_line(step.text))


def _hidden_gpus(script: BatchScript) -> Iterator[Observation]:
    """One GPU per task, and several tasks on a node."""
    for step in script.steps or [ScriptLine(1, "")]:
        options = {**script.options, **parse_options(step.text.partition("srun ")[2])}
        bind = options.get("--gpu-bind", "")
        is_split = "--gpus-per-task" in options or bind.startswith(("single", "per_task", "map"))
        has_one_task = options.get("--ntasks-per-node") == "1"
        if is_split and not has_one_task and bind != "none":
            option = f"--gpu-bind={bind}" if bind else "--gpus-per-task"
            message = f"{option} hides the GPUs of a node's other tasks"
            yield observation("gpus-hidden", message, script.evidence(step), option)
            return


def _early_expansion(script: BatchScript) -> Iterator[Observation]:
    """A task's variable that the batch script expands for srun, directly or through a variable of
    its own."""
    steps = " ".join(step.text for step in script.steps)
    for line in script.lines:
        assigned = re.match(r"\s*(?:export\s+)?(\w+)=", line.text)
        is_used = assigned is not None and re.search(rf"\$\{{?{assigned[1]}\b", steps)
        if line not in script.steps and not is_used:
            continue
        expanded = [name for name in TASK_VARIABLES if _is_expanded(line.text, name)]
        if expanded:
            message = (
                f"${expanded[0]} in line {line.number} is expanded before srun starts its tasks"
            )
            yield observation(
                "rank-expanded-early", message, script.evidence(line), _one_line(line.text)
            )


def _is_expanded(text: str, name: str) -> bool:
    states = dict(_quote_states(text))
    references = re.finditer(rf"\$\{{?{name}\b", text)
    return any(states.get(match.start(), "'") != "'" for match in references)


def _node_count(script: BatchScript) -> Iterator[Observation]:
    nodes = script.options.get("--nodes", "")
    if not nodes.isdigit():
        return
    for line in script.lines:
        match = re.search(r"--nnodes[= ]['\"]?(\d+)(?::(\d+))?", line.text)
        match = match or re.match(r"\s*(?:export\s+)?N?NODES=['\"]?(\d+)()['\"]?\s*$", line.text)
        if match is None:
            continue
        least, most = int(match[1]), int(match[2] or match[1])
        if not least <= int(nodes) <= most:
            message = f"line {line.number} says {match[1]} nodes, #SBATCH --nodes says {nodes}"
            command = "--nnodes=$SLURM_NNODES"
            source = script.evidence(line)
            yield observation("node-count-fixed", message, source, _one_line(line.text), command)


def _one_line(text: str) -> str:
    """A line as evidence: on one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."
