"""Phase filesystem: may training code trust the target folder, on every rank and between them?

work.py is one rank's hands, the steps are one module each, judging.py makes findings of what all ranks said. All ranks
take every step; one that cannot go on says so at the next exchange and keeps coming to the exchanges.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ...outcome import fold
from . import judging, locking, making, renaming, seeing, space, syncing
from .work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...outcome import Outcome
    from ...session import Session


def run(session: Session) -> Outcome:
    name = session.exchange("filesystem/name", f".provision-smoke-{secrets.token_hex(8)}")[0]
    work = Work(session, session.options.checkpoint_dir, session.options.checkpoint_dir / name)
    session.leftovers.append(work.root)
    try:
        making.step(work)
        crew = seeing.step(work)
        renaming.step(work, crew)
        locking.step(work, crew)
        syncing.step(work)
        space.step(work)
        work.look_again()
        answers = session.exchange("filesystem/answers", work.answer())
    finally:
        session.clear_leftovers()
    session.exchange("filesystem/cleared", None)
    return judging.judge(str(work.target), answers)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)
