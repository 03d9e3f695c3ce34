"""Checkpoints that are whole or absent: written beside their name, hashed, renamed in, verified before use.

manifest.py says what a checkpoint holds, commit.py makes one, read.py refuses a damaged one. Nothing here imports
torch: a checkpoint is verified by hashes alone, and what its files mean is the caller's business.
"""
