"""For training code, and what runs in the environments that provision builds: standard library and
torch only, Python 3.8 syntax.

Public are the names in `__all__` of `checkpoint`, `fs`, `comm.ranks`, `comm.collective`, `comm.store`
and `facts.ddp_check`. Everything else is internal and may change in any release.

The folder works as the installed package `provision_runtime`, and copied alone to any place
(`python provision_runtime smoke`). It imports nothing of ours from outside itself. The host reads
the JSON that it writes; of its code the host imports only `report`.
"""

__version__ = "0.1.0"
