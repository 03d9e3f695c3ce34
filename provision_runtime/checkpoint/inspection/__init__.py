"""What the command `checkpoint` shows and removes, without torch, also while a job saves.

root.py opens the root, or says what it is instead. inventory.py (list), contents.py (show),
audit.py (verify) and cleanup.py (prune) are the verbs: each returns a dataclass that is printed as
JSON.
"""
