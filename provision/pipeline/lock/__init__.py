"""environment.yml + virtual-packages.yml -> conda-lock.yml (v1).

What a workflow needs is named here: what is locked (asked), which packages answer it (solving), whether torch is the build that
was asked for (guarding), its content hash (hashing), and the file as it is written (writing) and read (reading).
"""

from provision.pipeline.lock.asked import ENVIRONMENT, VIRTUAL_PACKAGES, Inputs, check, inputs
from provision.pipeline.lock.contents import Contents, Entry, contents
from provision.pipeline.lock.diff import Compared, diff
from provision.pipeline.lock.export import Format, export, left_out, parts, platform_of, selected
from provision.pipeline.lock.guarding import guard
from provision.pipeline.lock.hashing import content_hashes
from provision.pipeline.lock.outside import SOLVERS, Outside, SolverName, find_solver
from provision.pipeline.lock.reading import composed, read, read_all, require_here
from provision.pipeline.lock.solving import StandIn, solve
from provision.pipeline.lock.updating import update
from provision.pipeline.lock.verify import Asked, Verified, verify
from provision.pipeline.lock.writing import FILE, text

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
