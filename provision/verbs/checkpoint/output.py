"""The text of `provision checkpoint`, from the results of the runtime's inspection."""

from __future__ import annotations

from provision.cli.console import table, wrap
from provision_runtime.checkpoint.inspection.audit import Audit, CheckpointVerdict
from provision_runtime.checkpoint.inspection.contents import Contents
from provision_runtime.checkpoint.inspection.inventory import (
    Checkpoint,
    CheckpointInventory,
    Cleanup,
    Unfinished,
)
from provision_runtime.checkpoint.inspection.transfer import Transfer
from provision_runtime.report.text import escape_line, format_bytes, format_count

LIST_HEAD = ("step", "ranks", "torch", "tensors", "size", "")


def result_lines(result: object, width: int | None) -> list[str]:
    """The text of what a verb returned. width: of the terminal."""
    if isinstance(result, CheckpointInventory):
        return list_lines(result)
    if isinstance(result, Contents):
        return show_lines(result, width=width)
    if isinstance(result, Audit):
        return verify_lines(result)
    if isinstance(result, Cleanup):
        return prune_lines(result)
    assert isinstance(result, Transfer)
    return transfer_lines(result)


def list_lines(inventory: CheckpointInventory) -> list[str]:
    checkpoints, unfinished = inventory.checkpoints, inventory.unfinished
    summary = f"{inventory.root}: {format_count(len(checkpoints), 'checkpoint')}"
    if inventory.latest is not None:
        summary += f", latest step {inventory.latest}"
    size = f"{format_bytes(inventory.bytes)} on disk"
    if inventory.copies_bytes:
        size += f", of which {format_bytes(inventory.copies_bytes)} are second copies"
    lines = [f"{summary}, {size}"]
    if checkpoints:
        lines += ["", table([_list_row(row) for row in checkpoints], LIST_HEAD)]
    if unfinished:
        rows = [
            (escape_line(row.name), _writer(row), format_bytes(row.bytes)) for row in unfinished
        ]
        lines += ["", table(rows, ("unfinished", "writer", "size"))]
    problems = [row.problem for row in checkpoints if row.problem]
    if problems:
        lines += ["", *problems]
    return lines


def show_lines(contents: Contents, *, width: int | None) -> list[str]:
    """What a checkpoint holds. width: of the terminal."""
    tensors, objects, files = contents.tensors, contents.objects, contents.files
    parent = f" after {contents.parent}" if contents.parent else ""
    ranks = format_count(contents.world_size, "rank")
    title = (
        f"step {contents.step} ({contents.folder}): commit {contents.sequence}{parent}, "
        f"{ranks}, torch {contents.torch or 'unknown'}"
    )
    lines = [
        *wrap(title, width),
        f"{format_count(len(tensors), 'tensor')}, {format_count(len(objects), 'object')}, "
        f"{format_bytes(contents.bytes)} in {format_count(len(files), 'file')}",
    ]
    rows = [
        (tensor.name, tensor.dtype.removeprefix("torch."), str([*tensor.shape]), tensor.bytes)
        for tensor in tensors
    ]
    rows += [(entry.name, "object", "", entry.bytes) for entry in objects]
    if rows:
        texts = [(escape_line(name), *kind, format_bytes(size)) for name, *kind, size in rows]
        lines += ["", table(texts, ("name", "type", "shape", "size"))]
    return lines


def verify_lines(audit: Audit) -> list[str]:
    checkpoints = audit.checkpoints
    damages = [damage for row in checkpoints for damage in row.damages]
    lines = [escape_line(str(damage.error(audit.root))) for damage in damages]
    lines += [f"{row.folder}: {_verdict(row)}" for row in checkpoints]
    whole = sum(row.verdict == "whole" for row in checkpoints)
    lines.append(
        f"{whole} of {format_count(len(checkpoints), 'checkpoint')} whole; "
        f"{format_bytes(audit.bytes_read)} read"
    )
    return lines


def prune_lines(cleanup: Cleanup) -> list[str]:
    action = "would remove" if cleanup.dry_run else "removed"
    lines = [f"{action} {name}" for name in cleanup.removed]
    lines += [f"{action} {name} (unfinished)" for name in cleanup.unfinished]
    for name in cleanup.unreadable:
        lines.append(f"left {name}: its manifest cannot be read, so it is not counted or removed")
    lines += [f"left {escape_line(row.name)} (unfinished): {_writer(row)}" for row in cleanup.left]
    if cleanup.copied_bytes:
        copied = "would copy" if cleanup.dry_run else "copied"
        lines.append(f"{copied} {format_bytes(cleanup.copied_bytes)} that existed once")
    lines += [escape_line(problem) for problem in cleanup.problems]
    summary = f"{cleanup.root}: {format_count(len(cleanup.remaining), 'checkpoint')} kept"
    removed = len(cleanup.removed) + len(cleanup.unfinished)
    return [
        *lines,
        f"{summary}, {action} {removed} ({format_bytes(cleanup.freed_bytes)} of disk space)",
    ]


def transfer_lines(result: Transfer) -> list[str]:
    values, size = format_count(result.values, "value"), format_bytes(result.bytes)
    return [f"{result.folder}: step {result.step}, {values}, {size}"]


def _list_row(row: Checkpoint) -> tuple[str, ...]:
    step = str(row.step)
    if row.generation:
        step += f" (generation {row.generation})"
    facts = [
        "?" if fact is None else str(fact) for fact in (row.world_size, row.torch, row.tensors)
    ]
    notes = ["latest"] if row.latest else []
    if row.state != "committed":
        notes.append(row.state)
    return (step, *facts, format_bytes(row.bytes), ", ".join(notes))


def _writer(row: Unfinished) -> str:
    if row.pid is None:
        return "writer unknown"
    state = "cannot be seen from here" if row.writer == "unknown" else row.writer
    return f"process {row.pid} on {row.host}, {state}"


def _verdict(row: CheckpointVerdict) -> str:
    if row.verdict == "unknown":
        return f"unknown: {row.problem}"
    verdict = row.verdict
    if row.damages:
        verdict = f"damaged, {format_count(len(row.damages), 'file')} not as committed"
    if not row.files:
        return verdict
    return f"{verdict} ({format_bytes(row.bytes)} in {format_count(row.files, 'file')})"
