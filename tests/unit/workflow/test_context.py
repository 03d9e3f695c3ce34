"""What a command says of its steps when it does not come to its end."""

from __future__ import annotations

import pytest

from provision.workflow.context import reported_steps
from tests.progress import Recorder


@pytest.mark.parametrize("reason", [KeyboardInterrupt, OSError, RuntimeError])
def test_steps_are_shown_after_an_error(reason: type[BaseException]) -> None:
    progress = Recorder()
    with pytest.raises(reason), reported_steps(progress) as steps:
        steps.extend(["lock made", "prefix made"])
        raise reason
    assert progress.warnings == ["done before this: lock made; prefix made"]


def test_nothing_is_claimed_without_a_step_or_without_an_error() -> None:
    progress = Recorder()
    with reported_steps(progress) as steps:
        steps.append("lock made")
    with pytest.raises(KeyboardInterrupt), reported_steps(progress):
        raise KeyboardInterrupt
    assert progress.warnings == []
