"""What `provision checkpoint` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table
from provision_runtime.report.text import escape_line, format_bytes

if TYPE_CHECKING:
    from provision.commands.checkpoint import (
        Checkpoint,
        Listing,
        Pruning,
        Shown,
        Unfinished,
        Verified,
        VerifiedCheckpoint,
    )

# Of a file's name, which is its content's SHA-256.
SHORT = 12
NAMES_SHOWN = 3
HEAD = ("step", "commit", "ranks", "torch", "tensors", "size", "own", "shared", "")


def list_lines(found: Listing) -> list[str]:
    counted = _count(len(found.checkpoints), "checkpoint")
    last = f", latest step {found.latest}" if found.latest is not None else ""
    lines = [f"{found.root}: {counted}{last}, {format_bytes(found.bytes)} on disk"]
    if found.checkpoints:
        lines += ["", table([_row(row) for row in found.checkpoints], HEAD)]
    if found.unfinished:
        rows = [
            (escape_line(row.name), _writer(row), format_bytes(row.bytes))
            for row in found.unfinished
        ]
        lines += ["", table(rows, ("unfinished", "writer", "size"))]
    return [
        *lines,
        *(
            ["", *problems]
            if (problems := [row.problem for row in found.checkpoints if row.problem])
            else []
        ),
    ]


def show_lines(found: Shown) -> list[str]:
    after = f" after {found.parent}" if found.parent else ""
    made = f"{_count(found.world_size, 'rank')}, torch {found.torch or 'unknown'}"
    held = f"{_count(len(found.tensors), 'tensor')}, {_count(len(found.objects), 'object')}"
    lines = [
        f"step {found.step} ({found.folder}): commit {found.sequence}{after}, {made}",
        f"{held}, {format_bytes(found.bytes)} in {_count(len(found.files), 'file')}",
    ]
    if found.tensors:
        rows = [
            (
                escape_line(one.name),
                one.dtype.removeprefix("torch."),
                str(list(one.shape)),
                format_bytes(one.bytes),
                _where(one.files),
            )
            for one in found.tensors
        ]
        lines += ["", table(rows, ("tensor", "type", "shape", "size", "file"))]
    if found.objects:
        lines += [
            "",
            table(
                [
                    (escape_line(one.name), format_bytes(one.bytes), _where([one.file]))
                    for one in found.objects
                ],
                ("object", "size", "file"),
            ),
        ]
    if referred := sorted({one.home for one in found.files if one.home}):
        lines += ["", f"some of its files lie in {', '.join(referred)}"]
    return lines


def verify_lines(found: Verified) -> list[str]:
    lines = []
    for one in found.checkpoints:
        for damage in one.damages:
            concerned = f" (it holds {_some(damage.tensors)})" if damage.tensors else ""
            lines.append(
                f"{found.root}/{damage.folder}/{escape_line(damage.file)}: {damage.problem}{concerned}"
            )
    lines += [f"{one.folder}: {_verdict(one)}" for one in found.checkpoints]
    whole = sum(one.verdict == "whole" for one in found.checkpoints)
    return [
        *lines,
        f"{whole} of {_count(len(found.checkpoints), 'checkpoint')} whole; {format_bytes(found.bytes_read)} read",
    ]


def prune_lines(found: Pruning) -> list[str]:
    verb = "would remove" if found.dry_run else "removed"
    lines = [f"{verb} {name}" for name in found.removed]
    lines += [f"{verb} {name} (unfinished)" for name in found.unfinished]
    lines += [
        f"left {name}: its manifest cannot be read, so it is neither counted nor removed"
        for name in found.unreadable
    ]
    lines += [f"left {escape_line(row.name)} (unfinished): {_writer(row)}" for row in found.left]
    kept = f"{_count(len(found.kept), 'checkpoint')} kept"
    done = f"{len(found.removed) + len(found.unfinished)} {'to remove, which frees' if found.dry_run else 'removed, which frees'}"
    return [
        *lines,
        f"{found.root}: {kept}, "
        + (
            f"{done} {format_bytes(found.freed_bytes)}"
            if found.removed or found.unfinished
            else "nothing to remove"
        ),
    ]


def _row(row: Checkpoint) -> tuple[str, ...]:
    notes = [
        note
        for note, said in (("latest", row.latest), (row.state, row.state != "committed"))
        if said
    ]
    name = f"{row.step}" + (f" (generation {row.generation})" if row.generation else "")
    told = tuple(
        "?" if one is None else str(one)
        for one in (row.sequence, row.world_size, row.torch, row.tensors)
    )
    return (
        name,
        *told,
        format_bytes(row.bytes),
        format_bytes(row.own_bytes),
        format_bytes(row.shared_bytes),
        ", ".join(notes),
    )


def _writer(row: Unfinished) -> str:
    if row.pid is None:
        return "writer unknown"
    seen = "cannot be seen from here" if row.writer == "unknown" else row.writer
    return f"process {row.pid} on {row.host}, {seen}"


def _verdict(one: VerifiedCheckpoint) -> str:
    if one.verdict == "unknown":
        return f"unknown: {one.problem}"
    said = (
        one.verdict
        if not one.damages
        else f"damaged, {_count(len(one.damages), 'file')} not as committed"
    )
    return (
        f"{said} ({format_bytes(one.bytes)} in {_count(one.files, 'file')})" if one.files else said
    )


def _where(files: Sequence[str]) -> str:
    return _some([name[:SHORT] if len(name) > 64 else name for name in files])


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(map(escape_line, names[:NAMES_SHOWN])) + (
        f" and {more} more" if more > 0 else ""
    )


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
