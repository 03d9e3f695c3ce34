"""What runs inside a built environment: standard library and torch only, Python 3.8 syntax.

The folder works as `provision_runtime` and copied alone to any place (`python provision_runtime smoke`). It imports
nothing of ours from outside itself; the host reads the JSON it writes, never its objects.
"""
