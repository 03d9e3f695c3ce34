"""environment.yml + virtual-packages.yml -> conda-lock.yml (v1).

What a workflow needs is named here: what is locked (asked), which packages answer it (solving), whether torch is the build that
was asked for (guarding), its content hash (hashing), and the file as it is written (writing) and read (reading).
"""

from provision.lockfile.conda_lock_v1 import composed, read, read_all, require_here
from provision.lockfile.conda_lock_v1_contents import Contents, Entry, contents
from provision.lockfile.conda_lock_v1_writer import FILE, text
from provision.lockfile.content_hash import content_hashes
from provision.lockfile.cuda_guard import guard
from provision.lockfile.differences import Compared, diff
from provision.lockfile.export import Format, export, left_out, parts, platform_of, selected
from provision.lockfile.external_solver import SOLVERS, Outside, SolverName, find_solver
from provision.lockfile.input_files import ENVIRONMENT, VIRTUAL_PACKAGES, Inputs, check, inputs
from provision.lockfile.joint_solve import StandIn, solve
from provision.lockfile.updates import update
from provision.lockfile.verify import Asked, Verified, verify

__all__ = [
    "ENVIRONMENT",
    "FILE",
    "SOLVERS",
    "VIRTUAL_PACKAGES",
    "Asked",
    "Compared",
    "Contents",
    "Entry",
    "Format",
    "Inputs",
    "Outside",
    "SolverName",
    "StandIn",
    "Verified",
    "check",
    "composed",
    "content_hashes",
    "contents",
    "diff",
    "export",
    "find_solver",
    "guard",
    "inputs",
    "left_out",
    "parts",
    "platform_of",
    "read",
    "read_all",
    "require_here",
    "selected",
    "solve",
    "text",
    "update",
    "verify",
]
