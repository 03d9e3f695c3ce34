"""Faults of batch scripts and training programs, from their text: nothing is run.

Reads a script as far as these faults need it: options of sbatch, logical lines, and what the shell
expands. A script that builds its commands otherwise is not understood, and gives no finding.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from ..dataclass import frozen
from .probe import Findings, observation
from .program_source import read_program
from .programs import examine_program

if TYPE_CHECKING:
    from pathlib import Path

    from ..report.diagnosis import ObservedFinding

# Slurm's variables that differ between the tasks of a step.
TASK_VARIABLES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
# Those that repeat an option.
GPU_VARIABLES = {
    "SLURM_GPUS": "--gpus",
    "SLURM_GPUS_PER_NODE": "--gpus-per-node",
    "SLURM_GPUS_PER_TASK": "--gpus-per-task",
}
# srun did not take over --cpus-per-task from 22.05 on; 23.11 does again.
FORGETS_CPUS = ((22, 5), (23, 11))
# Options of sbatch and srun that take no value, or only one after `=`.
WITHOUT_VALUE = (
    " --exact --exclusive --kill-on-bad-exit --label --no-kill --no-requeue --overlap --oversubscribe"
    " --pty --quiet --requeue --unbuffered --verbose -K -Q -k -l -s -u -v "
)
# The launcher that starts the other nodes itself, over ssh; not a name in the arguments of others.
DEEPSPEED = r"(?<![-\w/.])(?<!activate )deepspeed\s(?!.*--no_ssh)"
# torchrun numbers the nodes itself with any rendezvous but the static one.
NUMBERS_NODES = r"--rdzv[-_]backend[= ]['\"]?(?!static)\w|--standalone"
NODE_RANK = r"--(?:node|machine)[-_]rank[= ]['\"]?\$\{?\w+\}?"
ENDPOINT = r"(?:MASTER_ADDR=|--(?:rdzv[-_]endpoint|master[-_]addr|main_process_ip)[= ])['\"]?"
# An address or number that each node would make for itself.
NODE_VALUE = (
    ENDPOINT + r"\$\(hostname|--(?:rdzv[-_]id|master[-_]port|main_process_port)[= ]\$RANDOM"
)
TORCHRUN = r"(?s)\b(?:torchrun|torch\.distributed\.(?:run|launch))\s(.*)"
NODE_COUNT = r"--(?:nnodes|num_machines)[= ]['\"]?"
# Commands other than srun that start programs on other nodes.
REMOTE = r"\b(?:ssh|pdsh|clush|mpirun|mpiexec|prun)\b"
RANK_EXPORT = r"\s*export (?:(?:LOCAL_|NODE_|MACHINE_)?RANK|CUDA_VISIBLE_DEVICES)="
LOOPBACK = r"['\"]?(?:localhost|127\.0\.0\.1)"
# Where the address of the store comes from, and why it is not one that all nodes reach.
ADDRESSES = {
    r"(?:\|\| *(?:echo +|\w+=)|(?:ADDR|HOST|IP\w*|NODE):-)['\"]?(?:localhost|127\.)": "it falls back to"
    " localhost, as in containers without scontrol",
    r"\bSLURM_LAUNCH_NODE_IPADDR\b": "SLURM_LAUNCH_NODE_IPADDR is the host where srun was typed",
    r"\bhostname +(?:-i|--ip-address)\b|\bhostname +(?:-I|--all-ip-addresses)(?! *\|)": "hostname prints"
    " several addresses, or a loopback address",
}
# A quotation, or an escaped character; the group is what double quotes hold.
_QUOTED = r"(\"(?:\\.|[^\"\\])*\")|'[^']*'|\\."
_NO_QUOTE = r"[^\"'\\#]|(?<!\s)#|(?<=\s)#[^\n]*"
# What may come before an assignment.
_DECLARED = r"\s*(?:(?:export|local|readonly|declare(?: +-\w+)*) +)*"
# One-letter options of sbatch and srun.
LONG_NAMES = {"-N": "--nodes", "-c": "--cpus-per-task", "-n": "--ntasks", "-G": "--gpus"}


@frozen
class ScriptLine:
    """A logical line: with those that continue it."""

    number: int
    text: str


@frozen
class BatchScript:
    name: str
    options: dict[str, str]
    lines: tuple[ScriptLine, ...]

    @property
    def steps(self) -> list[ScriptLine]:
        """The lines that start a job step, but those that only read its output."""
        pattern = r"^(?!.*\$\( *srun )(?s:.*[\s;&|(])?srun\s"
        return [line for line in self.lines if re.search(pattern, line.text)]

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def spans_nodes(self) -> bool:
        nodes = self.options.get("--nodes", "")
        return nodes != "1" and bool(nodes or "NNODES" in self.text)

    def expanded(self, text: str) -> str:
        """A line with the values of the script's variables, and of its arrays."""
        pattern = rf"(?m)^{_DECLARED}(\w+)=(\((?:\$\([^)]*\)|[^)])*|['\"]?[^'\")$]*)"
        values = {name: value.lstrip("('\"") for name, value in re.findall(pattern, self.text)}
        return re.sub(
            r"\$\{?(\w+)(?:\[@\])?\}?", lambda match: values.get(match[1], match[0]), text
        )

    def step_options(self, step: ScriptLine) -> dict[str, str]:
        return parse_options(self.expanded(step.text).partition("srun ")[2])

    def options_of(self, step: ScriptLine) -> dict[str, str]:
        """The options of a step, with those of the job that it does not change."""
        return {**self.options, **self.step_options(step)}

    def fault(self, id: str, message: str, line: ScriptLine, command: str = "") -> ObservedFinding:
        seen = textwrap.shorten(line.text, 160, placeholder="...")
        return observation(id, message, f"{self.name}:{line.number}", seen, command)


def examine(path: Path, slurm_version: str) -> list[ObservedFinding]:
    """What is wrong in a file. slurm_version: as `srun --version` prints it; empty if unknown."""
    name = path.name
    try:
        if path.suffix == ".ipynb":
            raise ValueError("`jupyter nbconvert --to script` makes a program of a notebook")
        if path.suffix == ".py":
            return examine_program(read_program(path))
        script = parse(name, path.read_text(errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return [
            observation(
                "script-unreadable", f"the file cannot be read: {error}", name, type(error).__name__
            )
        ]
    checks = (
        _options_of_sbatch,
        _hidden_gpus,
        _early_expansion,
        _node_count,
        _worlds,
        _addresses,
        _gpu_variables,
        _processes,
    )
    findings = [finding for check in checks for finding in check(script)]
    return [*findings, *_cpus(script, slurm_version)]


def parse(name: str, text: str) -> BatchScript:
    options: dict[str, str] = {}
    lines: list[ScriptLine] = []
    pending, first_number = "", 0
    end_of_document, is_quoted = "", False
    for number, raw in enumerate(text.splitlines(), 1):
        if end_of_document:
            if raw.strip() == end_of_document:
                end_of_document = ""
            if is_quoted:
                continue
        elif raw.startswith("#SBATCH"):
            if any(line.text.strip() for line in lines):
                lines.append(ScriptLine(number, raw))
            else:
                options.update(parse_options(raw[len("#SBATCH") :]))
            continue
        if raw.lstrip().startswith("#"):
            continue
        first_number = first_number or number
        if raw.endswith("\\") or (not end_of_document and _is_open(pending + raw)):
            pending += raw[:-1] + " " if raw.endswith("\\") else raw + "\n"
            continue
        lines.append(ScriptLine(first_number, pending + raw))
        if document := re.search(r"(?<!<)<<-?\s*(['\"]?)([A-Za-z_]\w*)", raw):
            # A quoted delimiter: the shell expands nothing in the document.
            is_quoted, end_of_document = bool(document[1]), document[2]
        pending, first_number = "", 0
    if pending:
        lines.append(ScriptLine(first_number, pending))
    return BatchScript(name, options, tuple(lines))


def _is_open(text: str) -> bool:
    """True if a quotation, or an array, continues in the next line."""
    if re.match(_DECLARED + r"\w+\+?=\([^)]*$", text):
        return True
    return re.fullmatch(rf"(?s)(?:{_QUOTED}|{_NO_QUOTE})*", text) is None


def parse_options(text: str) -> dict[str, str]:
    """The options of sbatch, or of srun before its command: `--nodes=4 -c 8 --exclusive bash` as a
    dictionary of long names."""
    arguments = iter(text.partition(" #")[0].split())
    options = {}
    for argument in arguments:
        if not argument.startswith("-"):
            break
        name, equals, value = argument.partition("=")
        if attached := re.fullmatch(r"(-[A-Za-z])(\S+)", argument):
            name, value = attached[1], attached[2]
        elif not equals and f" {name} " not in WITHOUT_VALUE:
            value = next(arguments, "")
        options[LONG_NAMES.get(name, name)] = value
    return options


def _options_of_sbatch(script: BatchScript) -> Findings:
    for name, value in script.options.items():
        if "$" in value:
            yield observation(
                "sbatch-ignored",
                f"sbatch expands no variable: {name} is {value}",
                script.name,
                f"#SBATCH {name}={value}",
            )
    for line in script.lines:
        if line.text.startswith("#SBATCH"):
            yield script.fault("sbatch-ignored", f"a command comes before line {line.number}", line)
            return


def _cpus(script: BatchScript, slurm_version: str) -> Findings:
    cpus = script.options.get("--cpus-per-task", "1")
    version = tuple(map(int, re.findall(r"\d+", slurm_version)[:2])) or FORGETS_CPUS[0]
    forgets_cpus = FORGETS_CPUS[0] <= version < FORGETS_CPUS[1]
    if cpus in ("", "1") or not forgets_cpus or "SRUN_CPUS_PER_TASK" in script.text:
        return
    # The last one trains; those before it copy data or print versions.
    for step in script.steps[-1:]:
        if "--cpus-per-task" not in script.step_options(step):
            message = f"--cpus-per-task={cpus} is not passed to srun in line {step.number}"
            if not slurm_version:
                message += " (the version of Slurm is unknown: from 23.11 on, srun takes it over)"
            yield script.fault("srun-cpus", message, step)


def _hidden_gpus(script: BatchScript) -> Findings:
    """One GPU per task, and several tasks on a node."""
    for step in script.steps or [ScriptLine(1, "")]:
        options = script.options_of(step)
        bind = options.get("--gpu-bind", "")
        is_split = "--gpus-per-task" in options or bind.startswith(("single", "per_task", "map"))
        is_shared = bind == "none" or options.get("--gres-flags") == "allow-task-sharing"
        if is_split and _tasks_per_node(options) != 1 and not is_shared:
            option = f"--gpu-bind={bind}" if bind else "--gpus-per-task"
            yield observation(
                "gpus-hidden",
                f"{option} hides the GPUs of a node's other tasks",
                f"{script.name}:{step.number}",
                option,
            )
            return


def _early_expansion(script: BatchScript) -> Findings:
    """A task's variable that the batch script expands for srun, directly or through a variable of
    its own."""
    # The only task of a job has the same numbers as the batch script.
    if script.options.get("--nodes") == "1" and _tasks_per_node(script.options) == 1:
        return
    steps = " ".join(step.text for step in script.steps)
    numbers_nodes = re.search(NUMBERS_NODES, script.text)
    for line in script.lines:
        assigned = re.match(r"\s*(?:export\s+)?(\w+)=", line.text)
        is_used = assigned is not None and re.search(rf"\$\{{?{assigned[1]}\b", steps)
        is_exported = re.match(RANK_EXPORT, line.text) and steps and not numbers_nodes
        if line not in script.steps and not is_used and not is_exported:
            continue
        text = _shell_text(re.sub(NODE_RANK, "", line.text) if numbers_nodes else line.text)
        if expanded := [name for name in TASK_VARIABLES if re.search(rf"\$\{{?{name}\b", text)]:
            yield script.fault(
                "rank-expanded-early",
                f"${expanded[0]} in line {line.number} is expanded before srun starts its tasks",
                line,
            )


def _shell_text(text: str) -> str:
    """A line without what its shell leaves as it is: in single quotes, or escaped."""
    return re.sub(rf"(?s){_QUOTED}", lambda match: re.sub(r"(?s)\\.", "", match[1] or ""), text)


def _node_count(script: BatchScript) -> Findings:
    nodes = script.options.get("--nodes", "")
    for line in script.lines if nodes.isdigit() else ():
        match = re.search(NODE_COUNT + r"(\d+)(?::(\d+))?", script.expanded(line.text))
        if match and not int(match[1]) <= int(nodes) <= int(match[2] or match[1]):
            yield script.fault(
                "node-count-fixed",
                f"line {line.number} says {match[1]} nodes, #SBATCH --nodes says {nodes}",
                line,
                "--nnodes=$SLURM_NNODES",
            )
            return


def _worlds(script: BatchScript) -> Findings:
    """Launchers whose nodes do not form one world, in a job of several nodes."""
    if not script.spans_nodes:
        return
    numbers_nodes = re.search(NUMBERS_NODES, script.text)
    for line in script.lines:
        text = script.expanded(line.text)
        launcher = re.search(TORCHRUN, line.text)
        several = re.search(NODE_COUNT + r"(?!1\b)[\w$]", text)
        is_alone = not script.steps and not re.search(REMOTE, script.text)
        is_command = "--nodes" in script.options and not re.match(_DECLARED + r"\w+=", line.text)
        if several and is_alone and is_command:
            yield script.fault(
                "node-count-fixed", "without srun, the command starts on the first node only", line
            )
        options = script.options_of(line)
        is_part = {"-w", "--nodelist", "--relative"} & options.keys()
        if line not in script.steps or options.get("--nodes") == "1" or is_part:
            continue
        rank = re.search(r"--(?:node|machine)[-_]rank[= ]['\"]?(\S)", text)
        has_address = re.search(r"--(?:rdzv[-_]endpoint|master[-_]addr)[= ]", text)
        is_common = rank[1].isdigit() if rank else launcher and has_address
        if several and not numbers_nodes and is_common:
            yield script.fault("rank-expanded-early", "all nodes get the same node rank", line)
        # Arguments in variables may say anything.
        plain = launcher and not re.search(r"(?:^|\s)[^-\s]\S*\s+\"?\$|^\"?\$", launcher[1])
        if plain and not (rank or re.search(NODE_COUNT, text)):
            yield script.fault(
                "node-count-fixed",
                "each node starts a separate world: --nnodes is 1",
                line,
                "--nnodes=$SLURM_NNODES",
            )
        has_endpoint = re.search(r"--rdzv[-_]endpoint[= ]", text)
        if plain and several and numbers_nodes and not has_endpoint:
            yield script.fault(
                "address-local",
                "without --rdzv-endpoint, each node looks for the store on itself",
                line,
                "--rdzv-endpoint=$MASTER_ADDR",
            )
        if re.search(DEEPSPEED, text):
            yield script.fault(
                "node-count-fixed",
                "deepspeed starts the other nodes itself: each node starts all of them",
                line,
                "deepspeed --hostfile=FILE",
            )


def _tasks_per_node(options: dict[str, str]) -> int:
    """Slurm starts one task on each node unless it is told otherwise."""
    per_node = options.get("--ntasks-per-node", "")
    tasks, nodes = options.get("--ntasks", "1"), options.get("--nodes", "1")
    if not per_node.isdigit() and (tasks + nodes).isdigit():
        return -(-int(tasks) // int(nodes))
    return int(per_node) if per_node.isdigit() else 1


def _addresses(script: BatchScript) -> Findings:
    """Addresses of the store that some node cannot reach."""
    for line in script.lines if script.spans_nodes else ():
        if re.search(ENDPOINT + LOOPBACK, line.text):
            yield script.fault("address-local", "each node waits for itself", line)
        # What the batch script does not expand, each task does.
        in_task = re.search(NODE_VALUE, line.text.replace("\\", ""))
        if line in script.steps and in_task and not re.search(NODE_VALUE, _shell_text(line.text)):
            yield script.fault("address-local", "each node makes another value", line)
        for pattern, reason in ADDRESSES.items():
            if re.search(pattern, line.text):
                yield script.fault("address-uncertain", reason, line)


def _gpu_variables(script: BatchScript) -> Findings:
    """Variables of Slurm that are used as numbers, and are none."""
    unset = "" if "gpu" in script.options.get("--gres", "") else "0"
    values = {name: script.options.get(option, unset) for name, option in GPU_VARIABLES.items()}
    values["SLURM_TASKS_PER_NODE"] = "8(x2)" if script.spans_nodes else "8"
    for name, value in values.items():
        pattern = rf"^(?!.*\b(?:echo|cut|sed|awk|tr|grep|printf)\b).*\b{name}\b(?![:#%=\w])"
        for line in script.lines:
            if not value.isdigit() and re.search(pattern, line.text):
                yield script.fault(
                    "gpu-variable",
                    f"{name} is {value or 'not set with --gres'}, not a number",
                    line,
                )


def _processes(script: BatchScript) -> Findings:
    """More processes on a node than GPUs."""
    visible = re.search(r"CUDA_VISIBLE_DEVICES=['\"]?([\d,]+)", script.text)
    for line in script.lines:
        pattern = r"--(?:nproc[-_]per[-_]node|num_gpus)[= ]['\"]?(\$?\{?\w+)"
        if (per_node := re.search(pattern, script.expanded(line.text))) is None:
            continue
        options = script.options_of(line)
        listed = options.get("--gpus-per-node", options.get("--gres", ""))
        count = re.search(r"(?:^|:)(\d+)(?:$|[,(])", listed)
        gpus = count[1] if count else ""
        if visible:
            gpus = str(visible[1].count(",") + 1)
        tasks = _tasks_per_node(options) if line in script.steps else 1
        # Not a number: one process for each GPU, or for each task.
        is_more = tasks > 1
        if per_node[1].isdigit():
            is_more = bool(gpus) and int(per_node[1]) * tasks > int(gpus)
        if is_more:
            yield script.fault(
                "processes-many",
                f"{tasks} x {per_node[1]} processes for {gpus or 'the'} GPUs on a node",
                line,
            )
