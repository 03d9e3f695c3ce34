"""Images in registries, by the OCI distribution specification 1.1: nothing that is there already is
sent or fetched again, and an interrupted transfer is resumed.

reference is what a user writes, client the requests and the login; push, remote and signatures are what
we do with them. Credentials are Docker's (its config file and helpers). Names of this machine are
accessed through plain HTTP, as Docker does.
"""

from provision.image.registry.push import (
    IndexResult,
    PushResult,
    push_image,
    push_index,
    require_registry,
)
from provision.image.registry.reference import (
    RegistryReference,
    base_registry_reference,
    parse_registry_reference,
)
from provision.image.registry.remote import find_remote
from provision.image.registry.signatures import (
    attach_statement,
    sign_image,
    signed_statements,
    statement,
    verify_image,
)
