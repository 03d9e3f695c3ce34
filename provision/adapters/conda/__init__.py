"""The one door to py-rattler: what channels serve, solving, fetching and linking packages, indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that rattler does in Rust threads is
awaited to its end, so a returned function has nothing in flight.
"""

from provision.adapters.conda.channels import url_of
from provision.adapters.conda.install import index, link
from provision.adapters.conda.matchspec import (
    check_specs,
    is_version,
    name_of,
    pins_build,
    without_build,
    without_version,
)
from provision.adapters.conda.platforms import here
from provision.adapters.conda.published_rows import Row, published, row_of
from provision.adapters.conda.repodata import Record, Records
from provision.adapters.conda.satisfaction import Candidate, newer, unsatisfied
from provision.adapters.conda.solver import Request, Solver, solve
from provision.adapters.http import sha256_of
from provision.core.mirrors import DIRECT, Mirrors, without_login

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
