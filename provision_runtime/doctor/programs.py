"""Faults of training programs, from the syntax tree of one file: nothing is imported or run."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Tuple, Union

from .probe import Observation, observation
from .program_source import FUNCTIONS, ONE, OTHERS, Program, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A program with one of these runs in several processes.
DISTRIBUTED = (
    r"torch\.distributed|DistributedDataParallel|\bDDP\(|fully_shard|FullyShardedDataParallel|\bFabric\("
    r"|Accelerator\(|DistributedSampler|deepspeed|notebook_launcher|\bmp\.spawn|LOCAL_RANK"
    r"|multiprocessing|\.(?:all_reduce|barrier)\("
)
# What all ranks must call: on anything, or on these objects only.
COLLECTIVE = (
    r"(?:.*\.)?(?:all_reduce|all_gather\w*|all_to_all\w*|(?:monitored_)?barrier|broadcast_object_list"
    r"|(?:gather|scatter)_object\w*|reduce_scatter\w*|wait_for_everyone|gather_for_metrics"
    r"|pad_across_processes)|.+\.backward"
    r"|(?:.*\.)?(?:dist|distributed|c10d|@dist)\.(?:reduce|gather|scatter|broadcast|new_group)"
    r"|(?:.*\.)?_?accelerator\.(?:gather|reduce|prepare)"
    r"|(?:.*\.)?_?fabric\.(?:broadcast|save|load|setup|setup_dataloaders|clip_gradients)"
    r"|(?:.*\.)?strategy\.(?:broadcast|reduce)"
    r"|(?:.*\.)?trainer\.(?:fit|validate|test|predict|evaluate|train|save_checkpoint)"
)
# The state of what is spread over the ranks.
SHARDED = (
    r"(?:.*\.)?(?:get_(?:model|optimizer)_state_dict|(?:full_)?optim_state_dict|full_tensor"
    r"|summon_full_params|consolidate_state_dict|save_16bit_model)"
)
OF_MODULES = {
    r"\bFSDP\b|FullyShardedDataParallel|fully_shard": r"(?:.*\.)?(?:\w*model|\w*net|accelerator)"
    r"\.(?:state_dict|get_state_dict|save_state)",
    r"distributed\.checkpoint": r"(?:dcp|DCP|dist_cp|checkpoint)"
    r"\.(?:(?:async_)?save|load|\w+_state_dict)",
    "deepspeed": r"(?:.*\.)?(?:\w*engine|model\w*)\.save_checkpoint",
}
LAUNCH = (
    r"(?:[\w.]*\.)?(?:mp|multiprocessing)\.(?:spawn|start_processes)|(?:[\w.]*\.)?notebook_launcher"
    r"|(?:[\w.]*\.)?\w*fabric\.launch"
)
ONE_RANK = r"\b(?:rank_zero_only|rank_0_only|on_(?:local_)?main_process|(?:main|master)_(?:process_)?only)"
MAKES = r"os\.makedirs|os\.mkdir|shutil\.rmtree|os\.remove|os\.unlink|.+\.mkdir"
SAFE_PATH = r"(?i)exist_ok|ignore_errors|missing_ok|rank|te?mp|getpid|uuid"
WAITS = (
    r"[\w.]*\b(?:barrier|broadcast_object_list|all_gather_object|gather_object)\((?!.*device_ids)"
)
STARTS = r"[\w.]*init_process_group\((?!.*device_id)(?!(?:backend=)?['\"]gloo['\"])"
PORT = (
    r"MASTER_PORT['\"]?\]?\s*[=:]\s*(?:str\()?['\"]?(\w+)['\"]?\)?\s*(?:$|[,})])"
    r"|init_method=f?['\"]tcp://[^'\"]*:(\d+)"
)
RANDOM = r"(?:np|numpy)\.random\.|random\.Random\(|[\w.]*default_rng\("
CHECKPOINT = "(?i)ckpt|checkpoint|resume|weight|state|model|snapshot"
LOAD = r"torch\.load\((?:(?!.*map_location)|.*map_location=(?:torch\.device\()?(?:['\"]cuda:0|0\b))"

Fault = Tuple[str, Union[ast.expr, ast.stmt], str]


def examine_program(program: Program) -> list[Observation]:
    """The findings of the file, by line."""
    faults: dict[tuple[int, str], Observation] = {}
    for search in SEARCHES if program.has(DISTRIBUTED) else ():
        for id, node, message in search(program):
            seen = program.lines[node.lineno - 1].strip()
            source = program.position(node.lineno)
            faults.setdefault((node.lineno, id), observation(id, message, source, seen))
    return [faults[key] for key in sorted(faults)]


def _collective(program: Program, call: ast.Call) -> str:
    """The name of a call that all ranks must make; "" for others, and within a smaller group."""
    function, text = program.source(call.func), program.source(call)
    alias = re.search(r"import torch\.distributed as (\w+)", program.text)
    patterns = [COLLECTIVE.replace("@dist", alias[1] if alias else "dist"), SHARDED]
    patterns += [pattern for module, pattern in OF_MODULES.items() if program.has(module)]
    is_collective = any(re.fullmatch(pattern, function) for pattern in patterns)
    if re.search(r"\b(?:process_)?group=(?!None|[\w.]*WORLD)|^ctx\.", text):
        return ""
    is_remote = function.endswith("backward") and program.has(r"distributed\.rpc")
    is_collective = (is_collective and not is_remote) or "sync_dist=True" in text
    return function.split(".")[-1] if is_collective else ""


def _reached(
    program: Program, nodes: Iterable[ast.AST], pattern: str = "", depth: int = 3
) -> dict[str, ast.Call]:
    """The first call of each collective among these nodes, or of what the pattern names; directly
    or through functions of the file, but not below a condition on their arguments."""
    calls: dict[str, ast.Call] = {}
    for node in walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        function = program.source(node.func)
        is_match = pattern and re.fullmatch(pattern, function)
        name = function.split(".")[-1] if is_match else "" if pattern else _collective(program, node)
        if name:
            calls.setdefault(name, node)
        for callee in program.functions.get(function, []) if depth else ():
            arguments = "|".join(item.arg for item in callee.args.args if item.arg != "self")
            condition = rf"(?:if|with)\b.*\b(?:{arguments or '-'})\b"
            body = [item for item in callee.body if not re.match(condition, program.source(item))]
            for inner in _reached(program, body, pattern, depth - 1):
                if inner != "state_dict":
                    calls.setdefault(inner, node)
    return calls


def _forks(program: Program) -> Iterator[Fault]:
    """Collectives that one side of a condition on the rank calls, and the other does not."""
    for functions in program.functions.values():
        for function in functions:
            if re.search(ONE_RANK, " ".join(map(program.source, function.decorator_list))):
                yield from _one_rank(_reached(program, function.body), {}, "a decorator chooses")
    for node in ast.walk(program.tree):
        if not isinstance(node, (ast.If, ast.IfExp)) or not program.side(program.source(node.test)):
            continue
        test = program.source(node.test)
        if isinstance(node, ast.IfExp):
            yield from _one_rank(_reached(program, [node.body]), _reached(program, [node.orelse]), test)
            continue
        rest = _rest_after(program, node)
        inside, outside = _reached(program, node.body), _reached(program, node.orelse + rest)
        # What the ranks of the other side call elsewhere in the function.
        others: dict[str, ast.Call] = {}
        for item in walk(program.scope(node).body):
            if isinstance(item, ast.If):
                sides = {program.side(test), program.side(program.source(item.test))}
                others.update(_reached(program, item.body) if sides == {ONE, OTHERS} else {})
        yield from _one_rank(inside, {**outside, **others}, f"`{test}`")
        leave = f" (the others leave in line {node.body[-1].lineno})" if rest else ""
        yield from _one_rank(outside, {**inside, **others}, f"not `{test}`{leave}")


def _one_rank(calls: dict[str, ast.Call], others: dict[str, ast.Call], test: str) -> Iterator[Fault]:
    for name in [name for name in calls if name not in others][:1]:
        is_save = re.search("state|save|load|tensor|params", name)
        id = "checkpoint-one-rank" if is_save else "collective-one-rank"
        yield id, calls[name], f"{name} is called by some ranks only: {test}"


def _rest_after(program: Program, statement: ast.If) -> list[ast.stmt]:
    """The statements that ranks skip which leave at the end of this `if`: those of the function
    after it, or of the loop."""
    last = program.source(statement.body[-1])
    leaves = re.match(r"return\b|continue|break|(?:sys\.)?exit\(", last)
    result: list[ast.stmt] = []
    node: ast.AST = statement
    for outer in program.ancestors(statement) if leaves else ():
        for block in (getattr(outer, "body", []), getattr(outer, "orelse", [])):
            if node in block:
                result += block[block.index(node) + 1 :]
        is_loop = isinstance(outer, (ast.For, ast.While)) and last in ("continue", "break")
        if is_loop or isinstance(outer, FUNCTIONS):
            break
        node = outer
    return result


def _launches(program: Program) -> Iterator[Fault]:
    for function in ast.walk(program.tree):
        if isinstance(function, FUNCTIONS) and function.name in ("__init__", "__post_init__"):
            for name, call in _reached(program, function.body, LAUNCH).items():
                yield "launch-in-init", call, f"{function.name} starts the ranks ({name})"
    for name, call in _reached(program, program.tree.body, LAUNCH).items():
        # Fabric's launch without a function runs the file again, as torchrun would.
        is_again = program.source(call).endswith("launch()")
        if not (is_again or program.cells or _is_below(program, call, "__name__")):
            yield "launch-unguarded", call, f"importing this file starts the ranks ({name})"


def _is_below(program: Program, node: ast.AST, pattern: str) -> bool:
    """True below an `if` whose condition has this."""
    outer = [item for item in program.ancestors(node) if isinstance(item, ast.If)]
    return any(re.search(pattern, program.source(item.test)) for item in outer)


def _is_for_all(program: Program, node: ast.expr | ast.stmt, depth: int = 4) -> bool:
    """True if every rank runs this, at the same time."""
    started = re.findall(rf"(?:{LAUNCH})\((?:fn=)?(\w+)", program.text)
    child: ast.AST = node
    for outer in program.ancestors(node):
        if isinstance(outer, ast.If):
            # `rank == 0 or uses_deepspeed`: all ranks at most in some cases.
            kinds = [program.side(part) for part in program.source(outer.test).split(" or ")]
            if (OTHERS if child in outer.orelse else ONE) in kinds:
                return False
        if isinstance(outer, FUNCTIONS):
            if re.search(ONE_RANK, " ".join(map(program.source, outer.decorator_list))):
                return False
            for item in walk(outer.body):
                if isinstance(item, ast.If) and item.lineno < node.lineno:
                    kind = program.side(program.source(item.test))
                    if kind == OTHERS and _rest_after(program, item):
                        return False
            if outer.name in started:
                return True
            keys = [key for key, items in program.functions.items() if outer in items]
            ends = tuple(key.replace("self.", ".") for key in keys)
            callers = [call for call in program.calls if program.source(call.func).endswith(ends)]
            is_main = outer.name == "main" and not (started or callers)
            return is_main or any(depth and _is_for_all(program, call, depth - 1) for call in callers)
        child = outer
    # Where ranks are started by functions, the rest below the guard is their parent's.
    is_parent = bool(started) and _is_below(program, node, "__name__")
    return not (is_parent or _is_below(program, node, "gpu is None"))


def _folders(program: Program) -> Iterator[Fault]:
    """Folders and files that all ranks make or remove at once."""
    for call in program.calls:
        text = program.source(call)
        path = re.sub(r"^.*?\(|\.mkdir.*|[,)].*", "", text).split(".")[-1]
        values = " ".join([text, *program.assigned.get(path, [])])
        if not re.fullmatch(MAKES, program.source(call.func)) or re.search(SAFE_PATH, values):
            continue
        around = [*map(type, program.ancestors(call))]
        if ast.Try not in around and _is_for_all(program, call):
            yield "makedirs-race", call, f"every rank calls {text}: all but the first may fail"


def _samplers(program: Program) -> Iterator[Fault]:
    """Samplers without an epoch, in a program with epochs."""
    has_epochs = program.has(r"(?m)^\s*(?:for|while)\b.*epoch")
    if not has_epochs or program.has(r"set_epoch|\bFabric\(|Accelerator\(|LightningModule"):
        return
    # A function elsewhere that is given the sampler may pass it the epoch.
    if program.has(r"\w*(?<!Loader)\([^()]*,\s*(?:sampler=)?\w*sampler\d*\s*\)"):
        return
    for call in program.calls:
        if re.match(r"[\w.]*DistributedSampler\((?!.*shuffle=False)", program.source(call)):
            yield "set-epoch-missing", call, "no set_epoch: every epoch has the order of the first"


def _devices(program: Program) -> Iterator[Fault]:
    """Barriers, and collectives of objects, on a GPU that nobody chose."""
    waits, starts, choices = (
        [call for call in program.calls if re.match(pattern, program.source(call))]
        for pattern in (WAITS, STARTS, r"[\w.]*set_device")
    )
    for call in starts if waits and not choices else ():
        if not program.has("CUDA_VISIBLE_DEVICES") and _is_for_all(program, call):
            message = "init_process_group has no device_id, and nothing calls set_device"
            yield "barrier-device", call, message
    for wait in waits if starts and choices else ():
        choice = min(choices, key=lambda call: call.lineno)
        if wait.lineno < choice.lineno and program.scope(wait) is program.scope(choice):
            yield "barrier-device", wait, f"a GPU is chosen only later, in line {choice.lineno}"
            return


def _ports(program: Program) -> Iterator[Fault]:
    """Ports of the store that are written into the program."""
    for node in ast.walk(program.tree):
        match = isinstance(node, (ast.Assign, ast.Expr)) and re.search(PORT, program.source(node))
        if not match:
            continue
        port = match[1] or match[2]
        values = program.assigned.get(port, [port])
        is_number = len(values) == 1 and values[0].strip("'\"").isdigit()
        if is_number and not _is_below(program, node, "MASTER_|environ"):
            yield "port-fixed", node, f"port {values[0]} is fixed: two jobs on a node meet there"


def _workers(program: Program) -> Iterator[Fault]:
    """Random numbers in a dataset whose workers nothing seeds."""
    is_seeded = r"worker_init_fn|get_worker_info|initial_seed|seed_everything|seed\w*\([^)]*rank"
    if program.has(is_seeded) or not program.has(r"num_workers *= *(?!0\b)"):
        return
    for call in program.calls:
        outer = [item for item in program.ancestors(call) if isinstance(item, ast.ClassDef)]
        is_dataset = outer and re.search("def __(?:getitem|iter)__", program.source(outer[0]))
        if is_dataset and re.match(RANDOM, program.source(call)):
            if "Sampler" not in outer[0].name:
                yield "workers-unseeded", call, f"{outer[0].name} draws random numbers in workers"
                return


def _loads(program: Program) -> Iterator[Fault]:
    """Checkpoints that every rank loads onto the GPU that wrote them."""
    for call in program.calls:
        text = program.source(call)
        is_checkpoint = re.search(CHECKPOINT, program.lines[call.lineno - 1])
        if is_checkpoint and re.match(LOAD, text) and len(call.args) == 1:
            if _is_for_all(program, call):
                yield "load-device", call, "every rank loads it onto the GPU that wrote it"


def _layers(program: Program) -> Iterator[Fault]:
    """Layers whose shape differs between ranks."""
    for call in program.calls:
        for item in call.args if re.match(r"(?:torch\.)?nn\.", program.source(call)) else ():
            if isinstance(item, ast.IfExp) and program.side(program.source(item.test)):
                message = f"{program.source(call.func)} differs: {program.source(item)}"
                yield "parameters-by-rank", item, message


SEARCHES = (
    *(_forks, _launches, _folders, _samplers, _devices),
    *(_ports, _workers, _loads, _layers),
)
