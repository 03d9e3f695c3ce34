"""The one door to py-rattler: what channels serve, solving, fetching and linking packages, indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that rattler does in Rust threads is
awaited to its end, so a returned function has nothing in flight.
"""

from provision.conda.addresses import DIRECT, Alias, Mirrors, url_of
from provision.conda.channels import check_specs, is_version, unanswered
from provision.conda.checking import Candidate, newer, unsatisfied
from provision.conda.linking import index, link, sha256_of
from provision.conda.platforms import here
from provision.conda.solving import Request, Solver, solve

__all__ = [
    "DIRECT",
    "Alias",
    "Candidate",
    "Mirrors",
    "Request",
    "Solver",
    "check_specs",
    "here",
    "index",
    "is_version",
    "link",
    "newer",
    "sha256_of",
    "solve",
    "unanswered",
    "unsatisfied",
    "url_of",
]
