"""This node's part of a smoke test over several nodes: looks for the environment, then runs its
ranks as processes and returns what they left.

The ranks know each other by the variables of torchrun and Slurm; without torchrun's agents, which
give up when a node is missing, the test itself can say which node is missing and why.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, cast

from ..comm import addresses, processes
from ..facts import libraries
from .commands import is_caller_gone
from .errors import NodeError
from .store import Store
from .store_access import require_safe_path
from .store_files import read_json

if TYPE_CHECKING:
    from .results import Assignment, Prepared, RankEnd, RanksResult, Texts

# Variables of the step that runs this program, which would mislead a rank.
STEP_VARIABLES = ("SLURM_STEP", "PMI", "OMPI_", "TORCHELASTIC_")
RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# Python looks outside of the environment because of these.
FOREIGN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
POLL_S = 0.2
# An address that no network has (RFC 5737): the way to it is the default route.
ANYWHERE = "192.0.2.1"
# After the deadline: how long the ranks may take to write their last states.
ENDING_S = 10.0
# The end of each rank's log explains a failure.
LOG_BYTES = 20_000


def find_python(environments: list[str], rules: Texts) -> dict[str, str]:
    """The Python of an environment on this node.

    environments: folders that may hold it; the first that has a Python is taken. rules: of nodes.yml.
    Raises NodeError (no-environment, not-installed, unsafe-store).
    """
    for folder in environments:
        python = os.path.join(os.path.realpath(folder), "bin", "python")
        if os.access(python, os.X_OK):
            break
    else:
        for folder in environments:
            if os.path.exists(os.path.realpath(folder) + ".installed"):
                raise NodeError("not-installed", f"there is no {folder}/bin/python any more")
        raise NodeError("no-environment", f"there is no {' and no '.join(environments)}")
    require_safe_path(Store(folder, rules), f"{folder}/bin/python")
    return {"python": python}


def prepare(environments: list[str], rules: Texts) -> Prepared:
    """The same, and how the other nodes reach this one. Raises NodeError (also no-address)."""
    python = find_python(environments, rules)["python"]
    return {
        "python": python,
        "host": socket.gethostname(),
        "address": _address(),
        "port": addresses.free_port(),
        "gpus": min(libraries.visible_gpus(os.environ), libraries.usable_gpus()),
    }


def run(
    assignments: dict[str, Assignment],
    arguments: list[str],
    timeout_s: float,
    name: str | None = None,
) -> RanksResult:
    """Run this node's ranks until they have ended, or are ended after timeout_s.

    assignments: by node. arguments: of the smoke test, but for its folder. name: of this node; None
    in a step of Slurm, which knows it.
    """
    assignment = assignments[name or os.environ["SLURMD_NODENAME"]]
    out = tempfile.mkdtemp(prefix="provision-smoke-")
    try:
        ranks = _Ranks(assignment, arguments, out)
        return _result(ranks.statuses(), ranks.wait(timeout_s), out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


class _Ranks:
    """Processes of this node's ranks."""

    def __init__(self, assignment: Assignment, arguments: list[str], out: str) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        environment = _environment(assignment)
        # -I: neither variables nor the user's folders nor the current one change what is imported.
        # -B: the environment is read by others too.
        command = [assignment["python"], "-I", "-B", "-m", "provision_runtime", "smoke"]
        command += ["--out", out, *arguments]
        for local_rank in range(assignment["ranks"]):
            rank = assignment["first_rank"] + local_rank
            environment.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
            with open(os.path.join(out, f"rank{rank}.log"), "wb") as log:
                self._children[rank] = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=out,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=processes.death_signal(signal.SIGKILL),
                )

    def wait(self, timeout_s: float) -> str:
        """Returns when no rank is left: why they had to be ended, or an empty text."""
        ends_at = time.monotonic() + timeout_s
        reason = ""
        while self._living() and not reason:
            time.sleep(POLL_S)
            if time.monotonic() > ends_at:
                reason = f"the ranks were still running after {timeout_s:g} s"
            elif is_caller_gone():
                reason = "the connection to the caller is gone"
        for child in self._living():
            child.terminate()
        ends_at = time.monotonic() + ENDING_S
        while self._living() and time.monotonic() < ends_at:
            time.sleep(POLL_S)
        for child in self._children.values():
            # Its own children too: workers of a DataLoader.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return reason

    def statuses(self) -> dict[str, int]:
        return {str(rank): child.wait() for rank, child in self._children.items()}

    def _living(self) -> list[subprocess.Popen[bytes]]:
        return [child for child in self._children.values() if child.poll() is None]


def _environment(assignment: Assignment) -> dict[str, str]:
    """This program's variables, without those of its own step, and with those of the ranks."""
    removed = (*RANK_VARIABLES, *FOREIGN_VARIABLES)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in removed and not name.startswith(STEP_VARIABLES)
    }
    environment.update(
        WORLD_SIZE=str(assignment["world_size"]),
        LOCAL_WORLD_SIZE=str(assignment["ranks"]),
        MASTER_ADDR=assignment["address"],
        MASTER_PORT=str(assignment["port"]),
        PYTHONNOUSERSITE="1",
    )
    environment.setdefault("OMP_NUM_THREADS", "1")
    source = _source_address(assignment["address"])
    interface = addresses.interface_with(source) if source else None
    if interface is not None and assignment["world_size"] > assignment["ranks"]:
        # Else Gloo takes the address of the host's own name, which is often a loopback address.
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environment


def _result(statuses: dict[str, int], ended_because: str, out: str) -> RanksResult:
    """With the report, the last states and the ends of the logs that the ranks wrote."""
    result: RanksResult = {
        "statuses": statuses,
        "ended_because": ended_because,
        "report": read_json(os.path.join(out, "report.json")),
        "states": {},
        "logs": {},
    }
    for name in sorted(os.listdir(out)):
        path = os.path.join(out, name)
        if name.endswith(".last-state.json"):
            result["states"][name] = cast("RankEnd | None", read_json(path))
        elif name.endswith(".log"):
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - LOG_BYTES))
                result["logs"][name] = file.read().decode(errors="replace")
    return result


def _address() -> str:
    """The address at which other nodes reach this one: that of its name, unless that is a loopback
    address; else that of the default route, or of any interface."""
    address = addresses.host_address()
    if address is not None and not addresses.is_loopback(address):
        return address
    interfaces = map(addresses.address_of, addresses.interfaces())
    for other in (_source_address(ANYWHERE), *interfaces):
        if other is not None and not addresses.is_loopback(other):
            return other
    raise NodeError(
        "no-address", f"{socket.gethostname()} has no address that other nodes could reach"
    )


def _source_address(target: str) -> str | None:
    """This node's address on the way to another one; None if there is no route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # a datagram socket sends nothing by that
        except OSError:
            return None
        return str(probe.getsockname()[0])
