"""Starts a job on one of its nodes: the nodes find each other, compare facts, then run the ranks."""
