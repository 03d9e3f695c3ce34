"""What the command `checkpoint` shows and removes, without torch, also while a job saves.

root.py opens the root, or says what it is instead. inventory.py (list, prune), contents.py (show)
and audit.py (verify) are the verbs: each returns a dataclass that command.py prints as JSON.
"""
