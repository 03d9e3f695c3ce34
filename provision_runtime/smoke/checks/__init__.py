"""Judgments of the facts: the environment itself, what is around it, and how the ranks compare."""
