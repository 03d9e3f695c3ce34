"""What files come to beside an environment that stays."""

from __future__ import annotations

from provision.core.requirement_lines import parse_lines
from provision.project_files.request import Choices, decide

LINES = """\
torch>=2.4
torch==2.3.1
torchvision==0.18.1
torch==2.3.1+cu118
einops
nvidia-cudnn-cu12
./libs/pointops
"""


def test_an_environment_stays_and_the_rest_is_added() -> None:
    choices = Choices(
        torch="2.3.1", cuda="12.1", python="3.11", environment="lab", companions=False
    )
    statements = parse_lines(LINES, "more.txt")
    request = decide(statements, choices, default_python="3.11", located=str)
    assert request.content["pip"] == ["torchvision==0.18.1", "einops", "./libs/pointops"]
    assert request.contradictions == []
    outcomes = {entry.text: entry.outcome for entry in request.entries}
    assert outcomes.pop("torch>=2.4") == outcomes.pop("torch==2.3.1+cu118") == "left out"
    assert set(outcomes.values()) == {"taken"}
    steps = {entry.next_step for entry in request.entries} - {""}
    assert steps == {
        "provision build lab --torch '>=2.4' --relock",
        "provision build lab --cuda 11.8 --relock",
    }


def test_an_index_for_everything_is_set_as_it_was_stated() -> None:
    lines = "--index-url https://a.example/simple\n--extra-index-url https://b.example/simple\n"
    statements = parse_lines(lines, "requirements.txt")
    request = decide(statements, Choices(), default_python="3.11", located=str)
    assert [entry.next_step for entry in request.entries] == [
        "pip config set global.index-url https://a.example/simple",
        "pip config set global.extra-index-url https://b.example/simple",
    ]


def test_a_build_for_other_gpus_is_not_taken_as_one_for_cpus() -> None:
    statements = parse_lines("torch==2.4.1+rocm6.1\n", "requirements.txt")
    request = decide(statements, Choices(cpu=True), default_python="3.11", located=str)
    assert request.content == {"torch": "2.4.1", "cpu": True, "companions": False}
    (entry,) = request.entries
    assert entry.outcome == "translated" and "+rocm6.1" in entry.reason
