"""The page of a report: parsed as HTML. It needs nothing from outside, holds no code, and says all texts as they are."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision import render, report
from provision.cli.main import cli
from provision.core.errors import IntegrityError
from provision.core.paths import default_folders
from provision.verbs.report.evidence import load_evidence
from tests import evidence
from tests.damage import NOTHING, changed, paths
from tests.evidence import MIB, collectives, finding, passport, phase, row
from tests.paths import DATA
from tests.unit.report.test_report import page_of

GOLDEN = DATA / "golden" / "report" / "report.html"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each; every element must be closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def html(tmp_path: Path, *documents: dict[str, Any], remake: str = "provision") -> str:
    return render.render_report(
        render.REPORT,
        report.template_values(page_of(tmp_path, *documents)),
        remake=[remake, "report"],
    )


def rich(host: str = "node1", factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A passport with everything that a page can show."""
    sizes = [8, 1024, *(MIB << shift for shift in range(0, 11, 2))]
    rows = [
        row(
            size,
            busbw=factor * 450 * size / (size + 8 * MIB),
            expected_gb_s=450 * size / (size + 8 * MIB),
            ranks=8,
            dtype=dtype,
        )
        for size in sizes
        for dtype in ("float32", "bfloat16")
    ]
    smoke_report = evidence.report(
        phase(data={"p50_us": 50.0}),
        collectives(*rows, row(MIB, collective="broadcast", ranks=8)),
        phase("compute", data={"ranks": [{"rank": rank, "copy": 2700.0 + rank} for rank in range(8)]}),
        phase("ddp", verdict="fail", message="in short", findings=[finding(), finding(id="slow-rank", verdict="warn", ranks=[0, 1, 2])]),
        world_size=8, hosts=[host], skipped=["checkpoint"], **changes,
    )  # fmt: skip
    return passport(smoke_report, host=host)


def test_page_is_self_contained(tmp_path: Path) -> None:
    text = html(tmp_path, rich(), rich("node2", 0.8))
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "embed", "form"}.isdisjoint(
        {tag for tag, _ in page.elements}
    )
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("href", "src", "action")
    ]
    assert addresses and all(str(address).startswith("#") for address in addresses)
    targets = {attributes.get("id") for _, attributes in page.elements}
    assert {str(address)[1:] for address in addresses} <= targets
    assert not [
        name
        for _, attributes in page.elements
        for name in attributes
        if name.startswith("on") or name == "style"
    ]
    assert not re.findall(r"url\((?!#)|@import", text)
    (policy,) = [
        meta["content"]
        for meta in page.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert str(policy).startswith("default-src 'none'")


def test_every_section_is_present(tmp_path: Path) -> None:
    page = Page(html(tmp_path, rich(), rich("node2", 0.8)))
    for text in ("torch2.3-cuda12.1-py311 on 2 hosts", "wrong-value", "check its memory", "ranks 0-2", "skipped", "in short",
                 "all_reduce", "broadcast", "Pins", "cuda-graph-hang",
                 "H100", "256 MiB"):  # fmt: skip
        assert text in page.text, text
    assert page.all("html")[0]["lang"] == "en"
    bars = page.all("meter")
    assert len(bars) == 34
    assert all(float(bar["value"] or 0) <= float(bar["max"] or 0) * 1.01 for bar in bars)


HOSTILE = "<script>alert('x')</script>\"'&--><!-- {{ 7 * 7 }}\x00"


def test_hashes_are_short_and_whole_when_copied(tmp_path: Path) -> None:
    commit = "e3f009bbc0d7509ed5c85b633313ec72aa2d1a40"
    document = passport()
    document["reasons"][0]["source"] = f"a/b@{commit}:c"
    text = html(tmp_path, document)
    assert f'<span class="hash">{commit[:12]}<span class="rest">{commit[12:]}</span></span>' in text
    shown = re.sub(r'<span class="rest">.*?</span>', "", text.split("<body>")[1])
    assert not re.findall(r"\b[0-9a-f]{40,}\b", shown)


@pytest.mark.parametrize(
    ("advice", "shown"),
    [
        ("run `a <b>` or `c`", "run <code>a &lt;b&gt;</code> or <code>c</code>"),
        ("an open `one", "an open `one"),
    ],
)
def test_commands_in_advice_are_code(tmp_path: Path, advice: str, shown: str) -> None:
    failed = phase("ddp", verdict="fail", message="", findings=[finding(advice=advice)])
    text = html(tmp_path, passport(evidence.report(failed)))
    assert f'<p class="advice">{shown}</p>' in text


def test_passport_text_is_escaped(tmp_path: Path) -> None:
    smoke_report = evidence.report(
        phase(HOSTILE, verdict="fail", message=HOSTILE, findings=[finding(message=HOSTILE, advice=HOSTILE)]),
        collectives(row(MIB, collective=HOSTILE, dtype=HOSTILE, judged=HOSTILE), refused={HOSTILE: HOSTILE}, note=HOSTILE),
        hosts=[HOSTILE], profile=HOSTILE, backend=HOSTILE, device=HOSTILE, skipped=[HOSTILE], facts={HOSTILE: HOSTILE},
    )  # fmt: skip
    choice = {"what": HOSTILE, "value": HOSTILE, "reason": HOSTILE, "source": HOSTILE}
    pin = {"manager": "conda", "requirement": HOSTILE, "reason": HOSTILE, "source": HOSTILE}
    changes = {
        "name": HOSTILE,
        "made_by": HOSTILE,
        "request": {HOSTILE: HOSTILE},
        "reasons": [choice],
        "warnings": [choice],
        "pins": [pin],
    }
    first = passport(smoke_report, host=HOSTILE, **changes)
    second = passport(evidence.report(phase()), host="node2")
    text = html(tmp_path, first, second, remake=HOSTILE)
    text.encode("utf-8")
    page = Page(text)
    assert not page.all("script")
    assert "{{ 7 * 7 }}" in page.text and "49" not in page.text.split()
    assert "<script>alert('x')</script>" in page.text
    assert text.count("-->") == 1


def test_page_equals_the_golden_file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("passport.json").write_text(json.dumps(rich()))
    values = report.template_values(report.build_page([report.load(Path("passport.json"))]))
    text = render.render_report(
        render.REPORT, values, remake=["provision", "report", "passport.json", "-o", "report.html"]
    )
    if request.config.getoption("--update-golden"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_writes_the_page_and_overwrites_only_its_own(tmp_path: Path) -> None:
    source, out = evidence.write(tmp_path / "p.json", rich()), tmp_path / "report.html"
    for _ in range(2):
        result = run(str(source), "-o", str(out))
        assert (result.exit_code, result.stdout) == (
            0,
            f"wrote {out}: torch2.3-cuda12.1-py311, fail, 1 run of the smoke test\n",
        )
    assert out.read_text().startswith(
        "<!DOCTYPE html>\n<!-- Made by provision report; remake with: provision "
    )
    out.write_text("mine")
    assert run(str(source), "-o", str(out)).exit_code == 6
    assert out.read_text() == "mine"
    assert run(str(source), "-o", str(out), "--force").exit_code == 0
    assert "Made by provision report" in out.read_text()
    assert run(str(source), "-o", str(tmp_path)).exit_code == 3


def test_command_prints_the_page_or_a_summary(tmp_path: Path) -> None:
    source = evidence.write(tmp_path / "p.json", rich())
    Page(run(str(source)).stdout)
    content = json.loads(run(str(source), "--json").stdout)
    assert content["verdict"] == "fail"
    (file,) = content["files"]
    phases = file["runs"][0]["report"]["phases"]
    assert phases[3]["findings"][0]["advice"] == "check its memory"
    assert file["passport"]["name"] == content["title"]


def test_environments_may_be_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    folder = default_folders().passport("lab")
    evidence.write(folder / "passport.json", {**rich(), "name": "lab"})
    for target in ("lab", str(folder)):
        (file,) = json.loads(run(target, "--json").stdout)["files"]
        assert file["passport"]["name"] == "lab"
        assert "not installed" in file["outdated"]
    failed = run("lob")
    assert failed.exit_code == 3
    assert "Environments with a passport: lab." in failed.stderr.replace("\n", " ")


def test_a_passport_of_another_lock_than_the_one_next_to_it_says_so(tmp_path: Path) -> None:
    file = evidence.write(tmp_path / "passport.json", passport(evidence.report(phase())))
    page = report.build_page([load_evidence(default_folders(), file)])
    assert (page.verdict, page.files[0].outdated) == ("pass", "")
    (tmp_path / "conda-lock.yml").write_text("version: 1\n")
    page = report.build_page([load_evidence(default_folders(), file)])
    assert page.verdict == "unknown" and "of another lock" in page.files[0].outdated
    text = render.render_report(render.REPORT, report.template_values(page), remake=["provision"])
    assert text.count("of another lock") == 2, "at the top, and at the test"


def test_damaged_passport_has_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{")
    assert run(str(tmp_path / "p.json")).exit_code == 7


WHOLE = rich()
VALUES = st.one_of(
    st.just(NOTHING), st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20),
    st.sampled_from([0, -1, 1e-300, 1e300, 10**30, [], {}, [[]], [{}], ["x"], {"a": {"b": [1, {"c": None}]}}, "\x00", "\ud800", "-->"]),
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=st.sampled_from([path for path in paths(WHOLE) if path]), value=VALUES)
def test_any_damage_is_refused_with_a_message_or_shown(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    file = evidence.write(tmp_path / "p.json", changed(WHOLE, path, value))
    try:
        page = report.build_page(
            [report.load(file), report.load(evidence.write(tmp_path / "q.json", WHOLE))]
        )
    except IntegrityError:
        return
    text = render.render_report(
        render.REPORT, report.template_values(page), remake=["provision", "report"]
    )
    text.encode("utf-8")
    page_html = Page(text)
    assert not page_html.all("script")
