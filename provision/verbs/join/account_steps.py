"""The steps of `provision join` that concern the member's account: home, ssh, folders, shell."""

from __future__ import annotations

import getpass
import grp
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.adapters import clustershell, openssh
from provision.cluster.failures import REASONS, classify
from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.host import current_umask
from provision.verbs.join.join_run import JoinRun
from provision.verbs.join.settings_text import joined_settings
from provision.verbs.join.steps import Note, StepStatus, pending, settled, unsettled, warning
from provision.workflow.lab_definition import Cluster
from provision_runtime.report.findings import TMPDIR_LENGTH
from provision_runtime.report.text import format_bytes

# How long a login host may take. A second run over hosts that are up takes a fraction of a second; one that is
# down costs this.
CONNECT_S = 4.0
PROBE_S = 15.0
MARK = "provision-was-here"
# What doctor examines for the steps here. A probe that a file server holds up is a warning.
ACCOUNT_FINDINGS = ("home-unwritable", "quota-full", "quota-low", "probe-late", "probe-failed")
SSH_FINDINGS = ("ssh-key-open", "ssh-agent-dead")
SHELL_FINDINGS = ("pythonpath-on-path", "library-path", "user-site-on-path")
DOCTOR_FINDINGS = (*ACCOUNT_FINDINGS, *SSH_FINDINGS, *SHELL_FINDINGS)


def account(run: JoinRun) -> Iterator[Note]:
    """The lab's rules, and what doctor says of the home."""
    policy, home, umask = run.lab.policy, Path.home(), current_umask()
    room = os.statvfs(home)
    free = format_bytes(room.f_bavail * room.f_frsize)
    shell = Path(os.environ.get("SHELL", "sh")).name
    yield settled(f"{getpass.getuser()}, home {home} ({free} free), shell {shell}")
    missing = [group for group in policy.groups if not _is_member(group)]
    if missing:
        yield unsettled(
            f"you are not a member of the group {', '.join(missing)}",
            advice=f"Ask {run.lab.contact}. If you were added today, log in again.",
        )
    if policy.umask is not None and umask != policy.umask:
        yield warning(
            f"your umask is {umask:03o}; the lab's is {policy.umask:03o}",
            advice=f"Add to your shell's start file: umask {policy.umask:03o}",
        )
    yield from _doctor_notes(run, ACCOUNT_FINDINGS)


def _is_member(group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in (os.getegid(), *os.getgroups())
    except KeyError:
        return False


def _doctor_notes(run: JoinRun, ids: Sequence[str]) -> Iterator[Note]:
    """What doctor says of this account. What only warns leaves a step done."""
    for finding in run.account_findings(DOCTOR_FINDINGS):
        if finding["id"] not in ids:
            continue
        advice = finding["advice"][:1].upper() + finding["advice"][1:]
        if finding["command"]:
            advice += f": {finding['command']}"
        status: StepStatus = "open" if finding["verdict"] == "fail" else "warning"
        yield Note(status=status, message=finding["message"], advice=advice)


# ssh


def ssh(run: JoinRun) -> Iterator[Note]:
    folder = Path.home() / ".ssh"
    keys = openssh.private_keys(folder)
    yield from _doctor_notes(run, SSH_FINDINGS)
    names = ", ".join(key.name for key in keys)
    yield settled(f"key {names}" if keys else "no key in ~/.ssh")
    hosts = _login_hosts(run.lab.clusters)
    if not hosts:
        yield settled("the lab has no login hosts to reach")
        return
    # Log in to every host, without a password and without a question.
    commands = {
        host: clustershell.ssh_command(host, f"echo {MARK}", connect_s=CONNECT_S) for host in hosts
    }
    outputs = clustershell.run(commands, timeout_s=PROBE_S)
    reached = [output.node for output in outputs if MARK in output.stdout.decode(errors="replace")]
    if reached:
        yield settled(f"{clustershell.fold(reached)}: ssh lets you in")
    for output in outputs:
        if output.node in reached:
            continue
        stdout = output.stdout.decode(errors="replace")
        reason, message = classify(output.status, stdout, output.stderr)
        yield unsettled(
            f"{output.node}: {REASONS[reason].meaning} ({message.rstrip('.')})",
            advice=_ssh_advice(run, output.node, reason, keys),
        )


def _login_hosts(clusters: Sequence[Cluster]) -> list[str]:
    """The hosts to reach: none of a cluster where this machine is one of them, by its name."""
    here = socket.gethostname().partition(".")[0]
    hosts: list[str] = []
    for cluster in clusters:
        names = [host.rpartition("@")[2].partition(".")[0] for host in cluster.login]
        hosts += cluster.login if here not in names else ()
    return list(dict.fromkeys(hosts))


def _ssh_advice(run: JoinRun, host: str, reason: str, keys: Sequence[Path]) -> str:
    known_hosts = run.lab.known_hosts
    if reason == "host-key-unknown" and known_hosts is not None:
        return f"The lab publishes its hosts' keys: cat {known_hosts} >> ~/.ssh/known_hosts"
    if reason == "login-refused":
        public_keys = [path for path in map(openssh.public_key, keys) if path.is_file()]
        if not public_keys:
            return "Make a key: ssh-keygen -t ed25519"
        text = public_keys[0].read_text(encoding="utf-8", errors="replace").strip()
        return f"Add this line to ~/.ssh/authorized_keys there, or send it to {run.lab.contact}: {text}"
    if reason in ("refused", "connect-timeout", "unreachable", "hung"):
        return f"Run the same command again later. If it stays so, ask {run.lab.contact}."
    return REASONS[reason].advice.replace("HOST", host)


# Folders


def folders(run: JoinRun) -> Iterator[Note]:
    path = settings.joined_file()
    text = joined_settings(run.lab)
    if os.environ.get(settings.CONFIG):
        yield unsettled(
            f"{settings.CONFIG} names {os.environ[settings.CONFIG]}, so the lab's settings "
            "are not read",
            advice=f"unset {settings.CONFIG}, and run the same command again.",
        )
        return
    for key in sorted(run.lab.folders):
        folder = run.named_folder(key)
        assert folder is not None
        yield from _folder(run, key, *folder)
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        yield settled(f"{path} is as the lab says")
    elif run.act:
        atomic_write(path, text)
        run.changed = True
        yield settled(f"wrote {path}")
    else:
        yield pending(f"would write {path}")
    if run.act:
        settings.apply_folders()
        run.refresh()


def _folder(run: JoinRun, key: str, folder: Path, origin: str) -> Iterator[Note]:
    """Make sure of one folder. origin: who names it, if not the lab."""
    if not folder.is_dir():
        if not run.act:
            yield pending(f"{key}: would make {folder}")
            return
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            yield unsettled(
                f"{key}: {folder} cannot be made: {error.strerror}",
                advice=f"Ask {run.lab.contact} for the folder; or name another with `{key}:` in "
                f"{settings.joined_file().with_name(settings.FILE)}.",
            )
            return
        run.changed = True
    problem = ""
    if not os.access(folder, os.W_OK | os.X_OK):  # a read-only mount, too
        problem = "you may not write there"
    elif key == "data" and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        problem = "programs cannot be started from there (noexec)"
    elif key == "tmp" and len(os.fsencode(folder)) > TMPDIR_LENGTH:
        problem = (
            f"the path is too long: DataLoader workers make sockets there, which need a path of at "
            f"most {TMPDIR_LENGTH} characters"
        )
    if problem:
        yield unsettled(f"{key}: {folder}: {problem}", advice=f"Ask {run.lab.contact}.")
    else:
        suffix = f" (by {origin})" if origin else ""
        yield settled(f"{key}: {folder}{suffix}")


# Shell


def shell(run: JoinRun) -> Iterator[Note]:
    notes = list(_doctor_notes(run, SHELL_FINDINGS))
    yield from notes
    if not notes:
        yield settled("nothing gets in the way")
