"""The one door to py-rattler: what channels serve, solving, fetching and linking packages, indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that rattler does in Rust threads is
awaited to its end, so a returned function has nothing in flight.
"""

from provision.conda.addresses import url_of
from provision.conda.checking import Candidate, newer, unsatisfied
from provision.conda.linking import index, link
from provision.conda.platforms import here
from provision.conda.published import Row, published, row_of
from provision.conda.records import Record, Records
from provision.conda.requirements import check_specs, is_version, name_of, pins_build, without_build, without_version
from provision.conda.solving import Request, Solver, solve
from provision.fetch import sha256_of
from provision.mirrors import DIRECT, Mirrors, without_login

__all__ = [
    "DIRECT",
    "Candidate",
    "Mirrors",
    "Record",
    "Records",
    "Request",
    "Row",
    "Solver",
    "check_specs",
    "here",
    "index",
    "is_version",
    "link",
    "name_of",
    "newer",
    "pins_build",
    "published",
    "row_of",
    "sha256_of",
    "solve",
    "unsatisfied",
    "url_of",
    "without_build",
    "without_login",
    "without_version",
]
