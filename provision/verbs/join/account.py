"""A member's account: judges what is known of it against the lab's rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provision.core.dataclass import frozen
from provision.verbs.join.steps import Note, settled, unsettled, warning
from provision.workflow.lab_definition import Policy
from provision_runtime.report.text import format_bytes, format_count

GIB = 2**30
# A clone of a lab's repository and the settings are some 100 files; editors and caches need more.
LEAST_INODES = 1000
SIZES_ADVICE = "`du -xh -d1 ~ | sort -h | tail` shows what is large"


@frozen
class AccountFacts:
    """free_inodes: None where the file system has no fixed number."""

    user: str
    shell: str
    home: Path
    free_bytes: int
    free_inodes: int | None
    umask: int
    groups: tuple[str, ...]


def judge_account(facts: AccountFacts, policy: Policy, contact: str) -> tuple[Note, ...]:
    """What the lab's rules and a working account need, and the member lacks."""
    notes = [
        *_home_notes(facts, policy),
        *_rule_notes(facts, policy, contact),
    ]
    free = format_bytes(facts.free_bytes)
    summary = f"{facts.user}, home {facts.home} ({free} free), shell {Path(facts.shell).name}"
    return (settled(summary), *notes)


def _home_notes(facts: AccountFacts, policy: Policy) -> Iterator[Note]:
    if facts.free_bytes < policy.home_free_gib * GIB:
        free = format_bytes(facts.free_bytes)
        yield warning(
            f"{free} are free in your home; the lab wants {policy.home_free_gib:g} GiB",
            advice=f"{SIZES_ADVICE}.",
        )
    if facts.free_inodes is not None and facts.free_inodes < LEAST_INODES:
        free = format_count(facts.free_inodes, "file")
        yield warning(
            f"your home has room for only {free}, however small",
            advice="Remove small files: caches, old environments.",
        )


def _rule_notes(facts: AccountFacts, policy: Policy, contact: str) -> Iterator[Note]:
    missing = [group for group in policy.groups if group not in facts.groups]
    if missing:
        names = ", ".join(missing)
        yield unsettled(
            f"you are not a member of the group {names}",
            advice=f"Ask {contact}. If you were added today, log in again.",
        )
    if policy.umask is not None and facts.umask != policy.umask:
        yield warning(
            f"your umask is {facts.umask:03o}; the lab's is {policy.umask:03o}",
            advice=f"Add to your shell's start file: umask {policy.umask:03o}",
        )
