"""The one door to uv: which wheels satisfy requirements, and installing exactly those.

Where wheels come from is configuration: uv's own settings when it has any, else pip's. Addresses of this machine's own disk
(`file:` indexes, find-links folders) are asked only when the indexes cannot satisfy the request, so that a lock names files
that others can fetch wherever that is possible.
"""

from provision.wheels.command import explain, uv
from provision.wheels.installing import install, requirements, unpack
<<<<<<< HEAD
from provision.wheels.resolving import normal, resolve
from provision.wheels.settings import TORCH_INDEX, Indexes, indexes, pip_settings

__all__ = [
    "TORCH_INDEX",
    "Indexes",
=======
from provision.wheels.resolving import UV_GLIBC, Request, normal, resolve, versions
from provision.wheels.settings import TORCH_INDEX, Indexes, indexes

__all__ = [
    "TORCH_INDEX",
    "UV_GLIBC",
    "Indexes",
    "Request",
>>>>>>> 25e3994 (wip)
    "explain",
    "indexes",
    "install",
    "normal",
<<<<<<< HEAD
    "pip_settings",
=======
>>>>>>> 25e3994 (wip)
    "requirements",
    "resolve",
    "unpack",
    "uv",
<<<<<<< HEAD
=======
    "versions",
>>>>>>> 25e3994 (wip)
]
