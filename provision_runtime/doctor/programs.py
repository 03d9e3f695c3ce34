"""Faults of training programs, from the syntax tree of one file: nothing is imported or run."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Tuple

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
    r"|(?:.*\.)?(?:dist|distributed|c10d|{dist})\.(?:reduce|gather|scatter|broadcast|new_group)"
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
FSDP_STATE = r"(?:.*\.)?(?:\w*model|\w*net|accelerator)\.(?:state_dict|get_state_dict|save_state)"
LAUNCH = r"(?:.*\.)?(?:mp|multiprocessing)\.(?:spawn|start_processes)|(?:.*\.)?notebook_launcher"
LAUNCH += r"|(?:.*\.)?\w*fabric\.launch"
ONE_RANK_DECORATOR = r".*(?:rank_zero_only|rank_0_only|on_(?:local_)?main_process|(?:main|master)_(?:process_)?only)"
MAKES = r"(?:os\.makedirs|os\.mkdir|shutil\.rmtree|os\.remove|os\.unlink|.+\.mkdir)"

Fault = Tuple[str, ast.AST, str, str]


def examine_program(program: Program) -> list[Observation]:
    """The findings of the file, by line."""
    faults: dict[tuple[int, str], Observation] = {}
    for search in (
        *(_forks, _launches, _folders, _samplers, _devices),
        *(_ports, _workers, _loads, _layers),
    ):
        for id, node, message, command in search(program) if program.has(DISTRIBUTED) else ():
            line = getattr(node, "lineno", 1)
            seen = program.lines[line - 1].strip()
            fault = observation(id, message, program.position(line), seen, command)
            faults.setdefault((line, id), fault)
    return [faults[key] for key in sorted(faults)]


def _collective(program: Program, call: ast.Call) -> str:
    """The name of a call that all ranks must make; "" for others, and within a smaller group."""
    function, text = program.source(call.func), program.source(call)
    if re.search(r"\b(?:process_)?group=(?!None|[\w.]*WORLD)", text):
        return ""
    modules = [name for name in re.findall(r"import torch\.distributed as (\w+)", "\n".join(program.lines))]
    pattern = COLLECTIVE.replace("{dist}", "|".join([*modules, "dist"]))
    if re.search(r"\bsync_dist=True", text) or re.fullmatch(pattern, function):
        is_remote = function.endswith("backward") and program.has(r"distributed\.rpc|ctx\.")
        return "" if is_remote else function.split(".")[-1]
    return _sharded(program, function)


def _sharded(program: Program, function: str) -> str:
    patterns = [SHARDED]
    if program.has(r"\bFSDP\b|FullyShardedDataParallel|fully_shard"):
        patterns.append(FSDP_STATE)
    if program.has(r"distributed\.checkpoint"):
        patterns.append(r"(?:dcp|DCP|dist_cp|checkpoint)\.(?:(?:async_)?save|load|\w+_state_dict)")
    if program.has("deepspeed"):
        patterns.append(r"(?:.*\.)?(?:\w*engine|model\w*)\.save_checkpoint")
    matches = any(re.fullmatch(pattern, function) for pattern in patterns)
    return function.split(".")[-1] if matches else ""


def _reached(
    program: Program, nodes: Iterable[ast.AST], pattern: str = "", depth: int = 3
) -> dict[str, ast.Call]:
    """The first call of each collective among these nodes, or of what the pattern names; directly
    or through functions of the file that call it whatever their arguments are."""
    calls: dict[str, ast.Call] = {}
    for node in walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        function = program.source(node.func)
        name = function.split(".")[-1]
        if not pattern and _collective(program, node):
            calls.setdefault(_collective(program, node), node)
        elif pattern and re.fullmatch(pattern, function):
            calls.setdefault(name, node)
        for body in _bodies(program, node) if depth else ():
            for inner in _reached(program, body, pattern, depth - 1):
                if inner != "state_dict":
                    calls.setdefault(inner, node)
    return calls


def _bodies(program: Program, call: ast.Call) -> Iterator[list[ast.stmt]]:
    """The statements of what a call runs: without those below conditions on its arguments."""
    owner, _, name = program.source(call.func).rpartition(".")
    for function in program.functions.get(name, []) + program.functions.get("__init__", []):
        parent = program.parents[function]
        is_method = isinstance(parent, ast.ClassDef)
        is_made = function.name == "__init__" and getattr(parent, "name", "") == name
        if function.name != name and not is_made:
            continue
        if is_made or (owner == "self" and parent in program.ancestors(call)) or not (owner or is_method):
            arguments = "|".join(item.arg for item in function.args.args if item.arg != "self")
            conditions = rf"^(?:if|with)\b.*\b(?:{arguments or '-'})\b"
            lines = [statement for statement in function.body]
            yield [item for item in lines if not re.match(conditions, program.lines[item.lineno - 1].strip())]


def _forks(program: Program) -> Iterator[Fault]:
    """Collectives that one side of a condition on the rank calls, and the other does not."""
    for node in ast.walk(program.tree):
        if isinstance(node, FUNCTIONS):
            for decorator in map(program.source, node.decorator_list):
                if re.match(ONE_RANK_DECORATOR, decorator):
                    yield from _one_rank(_reached(program, node.body), {}, f"@{decorator}")
        elif isinstance(node, ast.IfExp) and program.side(node.test):
            other = _reached(program, [node.orelse])
            yield from _one_rank(_reached(program, [node.body]), other, program.source(node.test))
        elif isinstance(node, ast.If) and program.side(node.test):
            test = program.source(node.test)
            rest = _rest_after(program, node)
            inside, outside = _reached(program, node.body), _reached(program, node.orelse + rest)
            counterparts = _counterparts(program, node)
            yield from _one_rank(inside, {**outside, **counterparts}, test)
            leave = f", as the others leave in line {node.body[-1].lineno}" if rest else ""
            yield from _one_rank(outside, {**inside, **counterparts}, f"not ({test}){leave}")


def _one_rank(calls: dict[str, ast.Call], others: dict[str, ast.Call], test: str) -> Iterator[Fault]:
    names = [name for name in calls if name not in others]
    for name in names[:1]:
        is_save = re.search("state|save|load|tensor|params", name)
        id = "checkpoint-one-rank" if is_save else "collective-one-rank"
        yield id, calls[name], f"{name} is called only by ranks for which `{test}`", ""


def _rest_after(program: Program, statement: ast.If) -> list[ast.stmt]:
    """The statements that ranks skip which leave at the end of this `if`: those of the function
    after it, or of the loop."""
    leaves = re.match(r"(return|continue|break|(?:sys\.)?exit\()", program.source(statement.body[-1]))
    result: list[ast.stmt] = []
    node: ast.AST = statement
    for outer in program.ancestors(statement) if leaves else ():
        for block in (getattr(outer, "body", []), getattr(outer, "orelse", [])):
            if isinstance(block, list) and node in block:
                result += block[block.index(node) + 1 :]
        is_loop = isinstance(outer, (ast.For, ast.While)) and leaves[1] in ("continue", "break")
        if is_loop or isinstance(outer, FUNCTIONS):
            break
        node = outer
    return result


def _counterparts(program: Program, node: ast.If) -> dict[str, ast.Call]:
    """The collectives that the ranks of the other side call elsewhere in the function."""
    scopes = [item for item in program.ancestors(node) if isinstance(item, (*FUNCTIONS, ast.Module))]
    calls: dict[str, ast.Call] = {}
    for item in walk(scopes[0].body):
        if isinstance(item, ast.If) and {program.side(node.test), program.side(item.test)} == {ONE, OTHERS}:
            calls.update(_reached(program, item.body))
    return calls


def _launches(program: Program) -> Iterator[Fault]:
    for function in program.functions.get("__init__", []) + program.functions.get("__post_init__", []):
        for name, call in _reached(program, function.body, LAUNCH).items():
            yield "launch-in-init", call, f"{function.name} starts the ranks ({name})", ""
    for name, call in _reached(program, program.tree.body, LAUNCH).items():
        # Fabric's launch without a function runs the file again, as torchrun would.
        is_again = program.source(call).endswith("launch()")
        if not (is_again or program.cells or _is_main_only(program, call)):
            yield "launch-unguarded", call, f"importing this file starts the ranks ({name})", ""


def _is_main_only(program: Program, node: ast.AST) -> bool:
    """True below `if __name__ == "__main__"`."""
    outer = [item for item in program.ancestors(node) if isinstance(item, ast.If)]
    return any("__name__" in program.source(item.test) for item in outer)


def _is_for_all(program: Program, node: ast.AST, depth: int = 4) -> bool:
    """True if every rank runs this, at the same time."""
    spawned = [program.source(call) for call in program.calls if re.match(LAUNCH, program.source(call))]
    child = node
    for outer in program.ancestors(node):
        if isinstance(outer, ast.If):
            # `rank == 0 or uses_deepspeed`: all ranks at most in some cases.
            kinds = [program.side_of_text(text) for text in re.split(" or ", program.source(outer.test))]
            is_one = (ONE in kinds) if child in outer.body else (OTHERS in kinds)
            if is_one or re.search(r"gpu is None", program.source(outer.test)):
                return False
        if isinstance(outer, ast.With) and "first" in program.source(outer.items[0].context_expr):
            return False
        if isinstance(outer, FUNCTIONS):
            decorators = " ".join(map(program.source, outer.decorator_list))
            exits = [item for item in walk(outer.body) if isinstance(item, ast.If)]
            exits = [item for item in exits if item.lineno < getattr(node, "lineno", 0)]
            leave = [item for item in exits if _rest_after(program, item)]
            if re.match(ONE_RANK_DECORATOR, decorators) or OTHERS in map(program.side, [x.test for x in leave]):
                return False
            if any(re.search(rf"\b{outer.name}\b", text) for text in spawned):
                return True
            names = (outer.name, getattr(program.parents[outer], "name", ""))
            callers = [call for call in program.calls if program.source(call.func).split(".")[-1] in names]
            is_main = outer.name == "main" and not spawned and not callers
            return is_main or (depth > 0 and any(_is_for_all(program, call, depth - 1) for call in callers))
        child = outer
    return not (spawned and _is_main_only(program, node))


def _folders(program: Program) -> Iterator[Fault]:
    """Folders and files that all ranks make or remove at once."""
    for call in program.calls:
        text = program.source(call)
        path = re.sub(r".*\(|\.mkdir.*|[,)].*", "", text)
        values = " ".join([text, *program.assigned.get(path, [])])
        if not re.match(MAKES, program.source(call.func)) or re.search(
            "(?i)exist_ok|ignore_errors|missing_ok|rank|te?mp|getpid|uuid", values
        ):
            continue
        is_tried = any(isinstance(item, ast.Try) for item in program.ancestors(call))
        if not is_tried and _is_for_all(program, call):
            message = f"every rank calls {text} at once: all but the first may fail"
            yield "makedirs-race", call, message, ""


def _samplers(program: Program) -> Iterator[Fault]:
    """Samplers without an epoch, in a program with epochs."""
    is_told = r"set_epoch|\bFabric\(|Accelerator\(|LightningModule"
    if program.has(is_told) or not program.has(r"(?m)^\s*(?:for|while)\b.*epoch"):
        return
    for call in program.calls:
        text = program.source(call)
        if re.match(r"[\w.]*DistributedSampler\((?!.*shuffle=False)", text):
            message = "no set_epoch: every epoch has the order of the first"
            yield "set-epoch-missing", call, message, ""


def _devices(program: Program) -> Iterator[Fault]:
    """Barriers, and collectives of objects, on a GPU that nobody chose."""
    waits = [call for call in program.calls if re.match(
        r"[\w.]*\b(?:barrier|broadcast_object_list|all_gather_object|gather_object)\((?!.*device_ids)",
        program.source(call),
    )]
    choices = [call for call in program.calls if "set_device" in program.source(call.func)]
    for call in program.calls:
        text = program.source(call)
        if not waits or not re.match(r"[\w.]*init_process_group\((?!.*device_id)", text):
            continue
        if re.match(r"[\w.]*init_process_group\((?:backend=)?['\"]gloo['\"]", text):
            continue
        if not choices and not program.has("CUDA_VISIBLE_DEVICES") and _is_for_all(program, call):
            message = "init_process_group has no device_id, and nothing calls set_device"
            yield "barrier-device", call, message, ""
        for wait in waits if choices else ():
            scopes = [next(item for item in program.ancestors(node) if isinstance(item, (*FUNCTIONS, ast.Module))) for node in (wait, choices[0])]
            if scopes[0] is scopes[1] and wait.lineno < choices[0].lineno:
                message = f"a GPU is chosen later, in line {choices[0].lineno}"
                yield "barrier-device", wait, message, ""
                return


def _ports(program: Program) -> Iterator[Fault]:
    """Ports of the store that are written into the program."""
    for node in ast.walk(program.tree):
        if not isinstance(node, (ast.Assign, ast.Expr)):
            continue
        text = program.source(node)
        match = re.search(r"MASTER_PORT['\"]?\]?\s*[=:]\s*(?:str\()?['\"]?(\w+)['\"]?\)?\s*(?:$|[,})])", text)
        match = match or re.search(r"init_method=f?['\"]tcp://[^'\"]*:(\d+)", text)
        port = match[1] if match else ""
        values = program.assigned.get(port, [port])
        conditions = [program.source(item.test) for item in program.ancestors(node) if isinstance(item, ast.If)]
        is_checked = any(re.search("MASTER_|environ", condition) for condition in conditions)
        if len(values) == 1 and values[0].strip("'\"").isdigit() and not is_checked:
            yield "port-fixed", node, f"port {values[0]} is fixed: two jobs on a node meet there", ""


def _workers(program: Program) -> Iterator[Fault]:
    """Random numbers in a dataset whose workers nothing seeds."""
    is_seeded = r"worker_init_fn|get_worker_info|initial_seed|seed_everything|seed\w*\([^)]*rank"
    if program.has(is_seeded) or not program.has(r"num_workers *= *(?!0\b)"):
        return
    for node in ast.walk(program.tree):
        if isinstance(node, ast.ClassDef) and "Sampler" not in node.name:
            text = program.source(node)
            for call in ast.walk(node) if re.search(r"def __(getitem|iter)__", text) else ():
                if isinstance(call, ast.Call) and re.match(
                    r"(?:np|numpy)\.random\.|random\.Random\(|[\w.]*default_rng\(", program.source(call)
                ):
                    yield "workers-unseeded", call, f"{node.name} draws random numbers in workers", ""
                    break


def _loads(program: Program) -> Iterator[Fault]:
    """Checkpoints that every rank loads onto the GPU that wrote them."""
    for call in program.calls:
        text = program.source(call)
        line = program.lines[call.lineno - 1]
        is_first = re.search(r"map_location=(?:torch\.device\()?(?:['\"]cuda:0['\"]|0\b)", text)
        has_device = "map_location" in text or len(call.args) > 1
        is_checkpoint = re.search("(?i)ckpt|checkpoint|resume|weight|state|model|snapshot", line)
        if text.startswith("torch.load(") and is_checkpoint and (is_first or not has_device):
            if _is_for_all(program, call):
                yield "load-device", call, "every rank loads it onto the GPU that wrote it", ""


def _layers(program: Program) -> Iterator[Fault]:
    """Layers whose shape differs between ranks."""
    for call in program.calls:
        for item in call.args if re.match(r"(?:torch\.)?nn\.", program.source(call.func)) else ():
            if isinstance(item, ast.IfExp) and program.side(item.test):
                message = f"{program.source(call.func)} differs where {program.source(item.test)}"
                yield "parameters-by-rank", item, message, ""
