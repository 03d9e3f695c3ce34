"""`provision checkpoint`: what a job's checkpoints are, on a host without torch, also while the job saves.

roots.py opens what was named or says what it is instead; listing.py, showing.py, verifying.py and pruning.py are the verbs. What lies on
the disk and how it is read is `provision.inside.checkpoint`'s.
"""

from provision.workflows.checkpoint.listing import Checkpoint, Listing, Unfinished, listed
from provision.workflows.checkpoint.pruning import Pruning, pruned
from provision.workflows.checkpoint.roots import open_root, store_errors
from provision.workflows.checkpoint.showing import Shown, ShownFile, ShownObject, ShownTensor, shown
from provision.workflows.checkpoint.verifying import Verified, VerifiedCheckpoint, verified

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
