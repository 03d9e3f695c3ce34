"""The one door to plain HTTP: whether a file is served, small files, pieces of large ones, and files downloaded to the disk, each
checked against its hash.

Nothing here hangs: a server that is silent, or slower than it may be, for SILENCE_S is given up; what may be different a moment later
is tried again. A download is written beside its name, picked up where it stopped, and renamed only when its hash is right.
`file:` addresses are taken too, so that a mirror can lie on the disk. The environment's proxies and certificates are honored, and
pip's settings for them where the environment says nothing.
"""

from provision.adapters.http.client import TEXT_LIMIT, Answer, Wanted, Web, part_of
from provision.adapters.http.hash import sha256_of
from provision.adapters.http.pool import AT_ONCE, in_parallel
from provision.adapters.http.retry import SLOWEST, TIMEOUT, TRIES, pause_s, silence_s

__all__ = [
    "AT_ONCE",
    "SLOWEST",
    "TEXT_LIMIT",
    "TIMEOUT",
    "TRIES",
    "Answer",
    "Wanted",
    "Web",
    "in_parallel",
    "part_of",
    "pause_s",
    "sha256_of",
    "silence_s",
]
