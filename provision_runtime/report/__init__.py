"""The report of the smoke test: its JSON, and how people and CI services see it."""
