"""Why a node could not do something: one registry of reasons, and how ssh, srun and the node
program word them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from provision_runtime.report.text import escape_line

MESSAGE_LENGTH = 500


@dataclass(frozen=True, kw_only=True)
class FailureReason:
    meaning: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class NodeFailure:
    """What went wrong on one node.

    stage: what was being done (check, copy, verify, ...). reason: a key of REASONS. message: the
    tool's or system's own words, as one line of bounded length.
    """

    stage: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", message_line(self.message))


def message_line(text: str) -> str:
    """A stranger's text as one line of bounded length. Texts that differ stay different."""
    text = escape_line(text)
    if len(text) <= MESSAGE_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    end = f"... ({len(text)} characters, sha256 {digest})"
    return text[: MESSAGE_LENGTH - len(end)] + end


REASONS: dict[str, FailureReason] = {
    "unresolvable": FailureReason(
        meaning="the name does not resolve to an address",
        advice="Check the spelling, DNS, /etc/hosts and ~/.ssh/config.",
    ),
    "refused": FailureReason(
        meaning="the host is up, and nothing listens on its ssh port",
        advice="Start sshd there, or give the port in ~/.ssh/config.",
    ),
    "unreachable": FailureReason(
        meaning="there is no route to the host, or it is down",
        advice="Check its power and network; a jump host belongs in ~/.ssh/config.",
    ),
    "connect-timeout": FailureReason(
        meaning="the host did not respond within the time for connecting",
        advice="It is down, or a firewall drops packets. `connect_s` of nodes.yml gives it longer.",
    ),
    "hung": FailureReason(
        meaning="the host takes connections, but its sshd sends nothing",
        advice="It may be out of memory or processes, or stopped. Look at its console.",
    ),
    "connection-lost": FailureReason(
        meaning="the connection broke while the node was working",
        advice="Run the same command again; it goes on where it stopped.",
    ),
    "connection-closed": FailureReason(
        meaning="the host closed the connection before the login",
        advice="sshd may have too many logins at once (MaxStartups): try a smaller `fanout` in nodes.yml.",
    ),
    "host-key-unknown": FailureReason(
        meaning="ssh does not know the host's key",
        advice="Compare its fingerprint and add it: ssh-keyscan HOST >> ~/.ssh/known_hosts.",
    ),
    "host-key-changed": FailureReason(
        meaning="the host's key is not the one that ssh knows",
        advice="If the host was installed anew: ssh-keygen -R HOST, then add its new key. Else "
        "someone may be between you and it.",
    ),
    "login-refused": FailureReason(
        meaning="the host does not let you in without a password",
        advice="Add your key there (ssh-copy-id HOST) or load it (ssh-add); name the user in "
        "~/.ssh/config.",
    ),
    "account-unusable": FailureReason(
        meaning="the login works, but the account may not run commands",
        advice="The message of the host tells why: password expired, no shell, login hours.",
    ),
    "no-job": FailureReason(
        meaning="the node admits only users with a running job on it (pam_slurm_adopt)",
        advice="Run inside an allocation (salloc) with `via: srun` in the defaults of nodes.yml.",
    ),
    "not-in-allocation": FailureReason(
        meaning="the node does not belong to the current Slurm allocation",
        advice="Allocate it: salloc -w NODE. Or leave out `via: srun` to use ssh.",
    ),
    "no-slurmd": FailureReason(
        meaning="Slurm cannot start anything on the node",
        advice="`scontrol show node NAME` says since when; slurmd there may be down.",
    ),
    "no-python": FailureReason(
        meaning="there is no such Python on the node",
        advice="Install Python 3.8 or newer, or name it with `python:` in the defaults of nodes.yml.",
    ),
    "python-too-old": FailureReason(
        meaning="the node's Python is older than 3.8",
        advice="Name a newer one with `python:` in the defaults of nodes.yml.",
    ),
    "timed-out": FailureReason(
        meaning="the node was still working when its time was up; its state is unknown",
        advice="It is slow or hangs (often a network file system). Try it alone. If many time out, "
        "this machine may be the slow one: try a smaller `fanout` in nodes.yml.",
    ),
    "killed": FailureReason(
        meaning="a signal ended the program on the node",
        advice="The kernel's log there says why (dmesg: out of memory?).",
    ),
    "bad-answer": FailureReason(
        meaning="the node sent no reply, or one that is not what was asked for; nothing of it was used",
        advice="The message says what is wrong, or what was printed. A shell start file that ends the "
        "shell does this; so does a Python there that is not what it says.",
    ),
    "not-run": FailureReason(
        meaning="the node's engine runs no commands of ours",
        advice="Kubernetes nodes are only asked through kubectl; images and jobs reach them.",
    ),
    "node-gone": FailureReason(
        meaning="the engine does not list the node any more",
        advice="List the nodes again: provision nodes list.",
    ),
    "same-node": FailureReason(
        meaning="this is another name of a node that is listed already",
        advice="Nothing to do: the node is used once.",
    ),
    "no-environment": FailureReason(
        meaning="the environment is not on the node",
        advice="`provision ship NAME --on NODES` puts it there; --prefix names a folder that all "
        "nodes share.",
    ),
    "no-address": FailureReason(
        meaning="the node has no address but loopback ones",
        advice="Give it an address in the network of the other nodes.",
    ),
    "disk-full": FailureReason(
        meaning="the disk is full, or a quota is used up",
        advice="Free space below the path, or choose another with `path:` in nodes.yml.",
    ),
    "no-inodes": FailureReason(
        meaning="the file system has no inodes left",
        advice="Remove small files there, or choose another path with `path:` in nodes.yml.",
    ),
    "read-only": FailureReason(
        meaning="the file system is mounted read-only",
        advice="A disk with errors is mounted so by the kernel (dmesg). Else choose another path.",
    ),
    "permission-denied": FailureReason(
        meaning="this user may not do that there",
        advice="Let root make the folder for you (install -d -o USER PATH), or choose another path.",
    ),
    "no-such-path": FailureReason(
        meaning="a file or folder does not exist on the node",
        advice="Check `path:` in nodes.yml; a file system may not be mounted there.",
    ),
    "file-system": FailureReason(
        meaning="the file system reports an error of its own (I/O, stale handle)",
        advice="Look at the node's dmesg and mounts.",
    ),
    "wrong-arch": FailureReason(
        meaning="the environment has no build for the node's processor",
        advice="Build it with --platform for that processor, or leave these nodes out.",
    ),
    "old-glibc": FailureReason(
        meaning="the node's glibc is older than the environment needs",
        advice="Choose an older build (provision matrix), or run an image there.",
    ),
    "old-driver": FailureReason(
        meaning="the NVIDIA driver is too old for the environment's CUDA",
        advice="Update the driver, or choose an older CUDA (provision matrix --driver VERSION).",
    ),
    "gpu-driver": FailureReason(
        meaning="the node has NVIDIA GPUs, and its driver does not work",
        advice="Run nvidia-smi there; after an update of the driver the node needs a restart.",
    ),
    "gpu-missing": FailureReason(
        meaning="a GPU is on the bus and does not respond",
        advice="dmesg there says why (Xid); drain the node and reset it.",
    ),
    "gpu-count": FailureReason(
        meaning="the engine counts more GPUs than respond on the node",
        advice="Compare nvidia-smi on the node with gres.conf and the node's line in slurm.conf.",
    ),
    "gpu-unsupported": FailureReason(
        meaning="the build has no code for the node's GPU",
        advice="Choose another build: provision matrix --gpu NAME.",
    ),
    "no-gpu": FailureReason(
        meaning="the environment is for CUDA, and the node has no GPU",
        advice="It works there on the CPU.",
    ),
    "no-exec": FailureReason(
        meaning="programs cannot be run from the store's file system",
        advice="Choose another path with `path:` in nodes.yml.",
    ),
    "no-own-name": FailureReason(
        meaning="the node cannot resolve its own name, which ends torchrun and Gloo",
        advice="Add the name to DNS, or to /etc/hosts on the node.",
    ),
    "loopback-name": FailureReason(
        meaning="the node's own name resolves to a loopback address, where other nodes cannot reach it",
        advice="Remove the name from the 127.0.x.x line of /etc/hosts there.",
    ),
    "clock-skew": FailureReason(
        meaning="the node's clock is wrong, or this machine's is",
        advice="Start chronyd or ntpd there; `timedatectl` shows whether it works.",
    ),
    "no-mount": FailureReason(
        meaning="the node cannot mount a squashfs image: neither the kernel nor FUSE will",
        advice="Environments are unpacked there. To mount them: install squashfuse and fuse3.",
    ),
    "memlock": FailureReason(
        meaning="locked memory is limited, and InfiniBand needs it unlimited",
        advice="Set memlock to unlimited in limits.conf, or LimitMEMLOCK of slurmd.",
    ),
    "not-ready": FailureReason(
        meaning="the engine lists the node as unable to take jobs",
        advice="`kubectl describe node NAME` says why.",
    ),
    "unread": FailureReason(
        meaning="a fact could not be read, so nobody knows whether the node is fit",
        advice="A file system or the GPU driver hangs there. Try again, or look at the node's dmesg.",
    ),
    "in-use": FailureReason(
        meaning="another run, or a job, is using this on the node",
        advice="Wait for it and run the same command again; the message says who it is.",
    ),
    "cut-off": FailureReason(
        meaning="the connection ended before the whole image had arrived",
        advice="Run the same command again; what has arrived is kept.",
    ),
    "wrong-bytes": FailureReason(
        meaning="the bytes on the node's disk are not those that were packed",
        advice="If it happens again on this node: its memory, disk or network card is faulty.",
    ),
    "not-here": FailureReason(
        meaning="the node does not have this environment",
        advice="`provision ship NAME --on NODES` brings it there.",
    ),
    "not-verified": FailureReason(
        meaning="the node's image changed after it was verified",
        advice="`provision ship NAME --on NODES` verifies it, and brings it there again if needed.",
    ),
    "not-installed": FailureReason(
        meaning="the environment is on the node, and not mounted or unpacked",
        advice="`provision ship NAME --on NODES` installs it without sending anything.",
    ),
    "not-ours": FailureReason(
        meaning="the path holds something that provision did not make",
        advice="Move it away, or choose another path with `path:` in nodes.yml.",
    ),
    "unsafe-store": FailureReason(
        meaning="other users may change what jobs would run from there",
        advice="Give what the message names to root or to the account that ships (chown, chmod go-w, "
        "setfacl -b), and remove what others put there; or choose another `path:` in nodes.yml. "
        "`trusted_group: NAME` there trusts the members of one group.",
    ),
    "not-readable": FailureReason(
        meaning="those who should use the environment cannot start it",
        advice="Open what the message names (chmod; user_allow_other in /etc/fuse.conf, then unmount "
        "and ship again), or say who uses it: `readers: all`, `group:NAME` or `me` in nodes.yml.",
    ),
    "no-engine": FailureReason(
        meaning="no container engine on the node responds",
        advice="Start Docker or install podman there; or ship a pack with --to local or shared.",
    ),
    "pull-failed": FailureReason(
        meaning="the node's engine could not pull the image",
        advice="The message is the engine's: the registry's name, its certificate, a login.",
    ),
    "not-shared": FailureReason(
        meaning="the node does not see what another node wrote into the store",
        advice="Check that `path:` is one shared file system on all nodes; else ship --to local.",
    ),
    "no-method": FailureReason(
        meaning="the node can neither mount nor unpack the image",
        advice="Install squashfuse and fuse3, or squashfs-tools; or `provision pack --format tar`.",
    ),
    "does-not-start": FailureReason(
        meaning="the environment is installed there, and its Python does not start",
        advice="The message is Python's. `provision nodes check NAME` compares needs.",
    ),
    "cannot-unmount": FailureReason(
        meaning="an older environment could not be unmounted",
        advice="`findmnt` and `fuser -m` on the node show what holds it.",
    ),
    "peer-unreachable": FailureReason(
        meaning="the node could not connect to the node that serves the image",
        advice="If a firewall keeps nodes apart: `--set tree=0` sends each its copy from here, or use "
        "`--to shared` or `--to registry:...`.",
    ),
    "peer-failed": FailureReason(
        meaning="the node that serves the image broke off",
        advice="Run the same command again; what has arrived is kept.",
    ),
    "port-in-use": FailureReason(
        meaning="the port to serve the image on is taken on the node",
        advice="Run the same command again; another port is chosen.",
    ),
    "no-server": FailureReason(
        meaning="three nodes got the image from here, or ten failed while they received it, and no "
        "node can serve it to others",
        advice="If a firewall keeps nodes apart: `--set tree=0` sends each its copy from here, or use "
        "`--to shared` or `--to registry:...`.",
    ),
    "no-previous": FailureReason(
        meaning="no other environment of this name was active on the node before",
        advice="`--key KEY` chooses one that is there.",
    ),
    "system-error": FailureReason(
        meaning="the node's system refused for another reason", advice="The message has its words."
    ),
}

# What ssh (OpenSSH 7 to 10) and the programs that it starts print -> reason. First match wins.
_SSH_TEXTS: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \S+ key in|Host key for \S+ has changed",
        "host-key-changed",
    ),
    (r"Host key verification failed|No \S+ host key is known", "host-key-unknown"),
    (r"Could not resolve hostname|Name or service not known", "unresolvable"),
    (r"Access denied by pam_slurm_adopt", "no-job"),
    (r"timed out during banner exchange|during banner exchange", "hung"),
    (r"Connection refused", "refused"),
    (r"No route to host|Network is unreachable|Host is down", "unreachable"),
    (r"Timeout, server \S+ not responding|Broken pipe", "connection-lost"),
    (r"Connection timed out|Operation timed out", "connect-timeout"),
    (
        r"[Pp]assword (change required|has expired)|required to change your password",
        "account-unusable",
    ),
    (r"account has expired|account is currently not available|nologin", "account-unusable"),
    (
        r"Permission denied|Too many authentication failures|No supported authentication",
        "login-refused",
    ),
    (r"Connection to \S+ closed by remote host", "connection-lost"),
    (
        r"kex_exchange_identification|Connection (closed|reset) by|Exceeded MaxStartups",
        "connection-closed",
    ),
)
_SSH_FAILED = 255
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
# Lines of ssh and of login shells that explain nothing.
_NOISE = re.compile(r"^(Warning: Permanently added|@|\*\*|debug\d:)")


def classify(status: int | None, stdout: str, stderr: str) -> tuple[str, str]:
    """The reason and message for a command that sent no reply, by its exit status (None: still
    running at the end of its time) and by what it printed."""
    message = _last_line(stderr) or _last_line(stdout) or "it printed nothing"
    if status is None:
        return "timed-out", _last_line(stderr) or "no answer within the time limit"
    if status == _SSH_FAILED:
        reason = _ssh_reason(stderr)
        if reason is None:
            return "connection-lost", message
        # The last line that has the reason: ssh ends with the one that names the host.
        for line in reversed(_lines(stderr)):
            if _ssh_reason(line) == reason:
                return reason, message_line(line)
        return reason, message
    if status in (_NOT_EXECUTABLE, _NOT_FOUND):
        return "no-python", message
    if status > 128:
        return "killed", f"signal {status - 128}; {message}"
    if re.search(r"account is currently not available|nologin", stdout + stderr):
        return "account-unusable", message
    return "bad-answer", f"status {status}; {message}"


def _ssh_reason(text: str) -> str | None:
    for pattern, reason in _SSH_TEXTS:
        if re.search(pattern, text):
            return reason
    return None


def _lines(text: str) -> list[str]:
    """Those that explain something."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not _NOISE.match(line)]


def _last_line(text: str) -> str:
    """Tools put their reason there."""
    lines = _lines(text)
    return message_line(lines[-1]) if lines else ""
