"""The one door to uv: which wheels satisfy requirements, and installing exactly those; and what a wheel says of itself.

Where wheels come from is configuration: uv's own settings when it has any, else pip's. Addresses of this machine's own disk
(`file:` indexes, find-links folders) are asked only when the indexes cannot satisfy the request, so that a lock names files
that others can fetch wherever that is possible.
"""

from provision.adapters.uv.installed_wheels import fingerprint, fingerprints
from provision.adapters.uv.installer import install, requirements, unpack
from provision.adapters.uv.resolver import UV_GLIBC, Request, resolve, versions
from provision.adapters.uv.settings import TORCH_INDEX, Indexes, indexes, pip_settings, torch_index
from provision.adapters.uv.uv_process import explain, uv
from provision.adapters.uv.wheel_metadata import Metadata, metadata

__all__ = [
    "TORCH_INDEX",
    "UV_GLIBC",
    "Indexes",
    "Metadata",
    "Request",
    "explain",
    "fingerprint",
    "fingerprints",
    "indexes",
    "install",
    "metadata",
    "pip_settings",
    "requirements",
    "resolve",
    "torch_index",
    "unpack",
    "uv",
    "versions",
]
