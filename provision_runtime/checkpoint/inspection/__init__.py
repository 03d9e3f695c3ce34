"""The command `checkpoint`: works without torch, and while a job saves.

root.py opens the root, or explains what it is instead. inventory.py (list, prune), contents.py
(show) and audit.py (verify) are the verbs: each returns a dataclass that command.py prints as JSON.
"""
