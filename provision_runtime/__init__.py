"""What runs inside a built environment: standard library and torch only, Python 3.8 syntax.

The folder works as the installed package `provision_runtime`, and copied alone to any place
(`python provision_runtime smoke`). It imports nothing of ours from outside itself. The host reads
the JSON that it writes; of its code the host imports only `report`.
"""
