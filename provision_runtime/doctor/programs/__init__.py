"""Faults of Python training programs, from their text: nothing is imported or run."""

from __future__ import annotations

from .faults import examine_program as examine_program
from .source import SourceError as SourceError
from .source import read_program as read_program
