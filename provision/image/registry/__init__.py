"""Images to registries and from them, as the OCI distribution specification 1.1 has it: what is there already is not sent, what broke off
is resumed.

places is what a user writes, talking the requests, tokens who we are, answers what comes back (and when to ask again), documents what a
registry's documents must be, pushing, pulling and referring what is done with them. Credentials are Docker's own (its config file and
helpers, sdk.login). Names of this machine speak plain HTTP, as with Docker.
"""

from provision.image.registry.downloads import as_pulled, is_whole, look, plain, pull
from provision.image.registry.manifest import Remote
from provision.image.registry.reference import Target, base_target, target
from provision.image.registry.referrer import Referrer, attach, content, referrers
from provision.image.registry.uploads import Pushed, push

__all__ = [
    "Pushed",
    "Referrer",
    "Remote",
    "Target",
    "as_pulled",
    "attach",
    "base_target",
    "content",
    "is_whole",
    "look",
    "plain",
    "pull",
    "push",
    "referrers",
    "target",
]
