"""What ssh and shells say -> the reason. The texts are OpenSSH's own, most of them captured from 9.2."""

from __future__ import annotations

import pytest

from provision.cluster.failures import REASONS, classify
from provision_runtime.node import errors

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Offending ED25519 key in /home/me/.ssh/known_hosts:3
Host key for n1 has changed and you have requested strict checking.
Host key verification failed."""


# Slurm 22.05.
NO_SLURMD = """\
srun: error: Task launch for StepId=5.0 failed on node n4: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ssh: Could not resolve hostname n1: Name or service not known", "unresolvable"),
        (
            "ssh: Could not resolve hostname n1: Temporary failure in name resolution",
            "unresolvable",
        ),
        ("ssh: connect to host n1 port 22: Connection refused", "refused"),
        ("ssh: connect to host n1 port 22: No route to host", "unreachable"),
        ("ssh: connect to host n1 port 22: Network is unreachable", "unreachable"),
        ("ssh: connect to host n1 port 22: Connection timed out", "connect-timeout"),
        ("Connection timed out during banner exchange", "hung"),
        (
            "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out",
            "hung",
        ),
        ("Host key verification failed.", "host-key-unknown"),
        (
            "No ED25519 host key is known for n1 and you have requested strict checking.\n"
            "Host key verification failed.",
            "host-key-unknown",
        ),
        (CHANGED, "host-key-changed"),
        ("me@n1: Permission denied (publickey,password).", "login-refused"),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
            "login-refused",
        ),
        (
            "Access denied by pam_slurm_adopt: you have no active jobs on this node\n"
            "Connection closed by 10.0.0.1 port 22",
            "no-job",
        ),
        (
            "WARNING: Your password has expired.\nPassword change required but no TTY available.",
            "account-unusable",
        ),
        (
            "kex_exchange_identification: Connection closed by remote host\n"
            "Connection closed by 10.0.0.1 port 22",
            "connection-closed",
        ),
        ("Connection to n1 closed by remote host.", "connection-lost"),
        ("Timeout, server n1 not responding.", "connection-lost"),
        ("client_loop: send disconnect: Broken pipe", "connection-lost"),
        ("something new", "connection-lost"),
    ],
)
def test_texts_of_ssh(text: str, reason: str) -> None:
    found, message = classify(255, "", text)
    assert found == reason
    assert message in text
    assert not message.startswith("@")


def test_message_is_the_telling_line_among_banners() -> None:
    banner = "*** Property of the lab ***\nWarning: Permanently added 'n1' to the list.\n"
    text = banner + "ssh: connect to host n1 port 22: Connection refused\nBye"
    assert classify(255, "", text) == (
        "refused",
        "ssh: connect to host n1 port 22: Connection refused",
    )


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "reason"),
    [
        (127, "", "bash: line 1: python3: command not found", "no-python"),
        (127, "", "sh: 1: exec: /opt/python: not found", "no-python"),
        (126, "", "bash: /opt/python: Permission denied", "no-python"),
        (137, "", "", "killed"),
        (None, "", "", "timed-out"),
        (None, "", "some warning", "timed-out"),
        (0, "Welcome", "", "bad-answer"),
        (1, "", "Traceback ...\nKeyError: 'x'", "bad-answer"),
        (1, "This account is currently not available.", "", "account-unusable"),
        (1, "", NO_SLURMD, "no-slurmd"),
        (127, "", "sh: 1: python: not found\nsrun: error: n1: task 0: Exited 127", "no-python"),
        (137, "", "srun: error: n2: task 0: Killed", "killed"),
    ],
)
def test_commands_without_an_answer(
    status: int | None, stdout: str, stderr: str, reason: str
) -> None:
    assert classify(status, stdout, stderr)[0] == reason


def test_message_of_a_bug_is_its_last_line() -> None:
    _, message = classify(1, "", "Traceback (most recent call last):\n  ...\nKeyError: 'x'\n")
    assert message == "status 1; KeyError: 'x'"


def test_message_of_a_step_is_what_its_task_said() -> None:
    assert classify(2, "", "KeyError: 'x'\nsrun: error: n1: task 0: Exited with exit code 2\n") == (
        "bad-answer",
        "status 2; KeyError: 'x'",
    )
    assert classify(1, "", NO_SLURMD)[1].startswith("srun: error: Task launch for StepId=5.0")


def test_reasons_of_the_node_are_in_the_registry() -> None:
    assert {*errors.REASONS.values(), errors.OTHER, "no-inodes", "python-too-old"} <= set(REASONS)
