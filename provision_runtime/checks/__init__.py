"""Judgments of one rank's facts: the environment itself, and what is around it."""
