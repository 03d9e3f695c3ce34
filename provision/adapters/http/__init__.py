"""The one door to plain HTTP: small files, ranges of large ones, and verified downloads.

Nothing here hangs: requests to a server that is silent or too slow for READ_TIMEOUT_S end, and
transient errors are retried. A download is written under a partial name, and renamed only when its
hash is right. `file:` URLs work too, so that a mirror can lie on the
disk. The environment's proxies and certificates are honored, and pip's settings for them where the
environment sets none. Registries have their own protocol (image/registry) on these sessions and
this backoff.
"""

from provision.adapters.http.client import (
    TEXT_LIMIT,
    HttpClient,
    in_parallel,
    partial_path,
)
from provision.adapters.http.retry import (
    SLOWEST_BYTES_PER_S,
    TIMEOUT_VARIABLE,
    Backoff,
    read_timeout_s,
    retry,
)
from provision.adapters.http.session import (
    CONNECTIONS,
    UNTRUSTED,
    UNTRUSTED_ADVICE,
    connection_variables,
)
from provision_runtime.facts.digests import file_sha256 as sha256_of
