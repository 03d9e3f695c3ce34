"""`provision checkpoint`: what a job's checkpoints are, on a host without torch, also while the job saves.

roots.py opens what was named or says what it is instead; listing.py, showing.py, verifying.py and pruning.py are the verbs. What lies on
the disk and how it is read is `provision_runtime.checkpoint`'s.
"""

from provision.commands.checkpoint.contents import Shown, ShownFile, ShownObject, ShownTensor, shown
from provision.commands.checkpoint.listing import Checkpoint, Listing, Unfinished, listed
from provision.commands.checkpoint.retention import Pruning, pruned
from provision.commands.checkpoint.roots import open_root, store_errors
from provision.commands.checkpoint.verification import Verified, VerifiedCheckpoint, verified

__all__ = [
    "Checkpoint",
    "Listing",
    "Pruning",
    "Shown",
    "ShownFile",
    "ShownObject",
    "ShownTensor",
    "Unfinished",
    "Verified",
    "VerifiedCheckpoint",
    "listed",
    "open_root",
    "pruned",
    "shown",
    "store_errors",
    "verified",
]
