"""Facts -> the table of every build: torch x CUDA x source x platform, and which of them fit a question. Pure.

A build fits when every part of the question is known to be met. Where a fact is not known the build might fit: it is counted, and
shown only when asked for, marked. Choosing one build is the matrix's.
"""

from __future__ import annotations

from provision.resolver.query import Question, question
from provision.resolver.table_rows import Cell, Table, table

__all__ = ["Cell", "Question", "Table", "question", "table"]
