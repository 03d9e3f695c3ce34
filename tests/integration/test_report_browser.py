"""The page of a report in a real browser, as wide as a desktop and as a phone: nothing hangs over, is cut off or too small to read."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision import render, report
from tests import drift_records, evidence
from tests.unit.report.test_report_page import rich

pytestmark = pytest.mark.browser
# Runs in the page and leaves what it measured in the title. The page itself forbids scripts, so its policy is taken out first.
MEASURE = """
<script>
const box = (element) => element.getBoundingClientRect();
const scrolled = (element) => element.closest('.scroll, details:not([open])') !== null;
const shown = [...document.querySelectorAll('main *, header *')].filter((element) => !scrolled(element) && box(element).width > 1);
parent.document.title = 'MEASURED' + JSON.stringify({
  wide: document.documentElement.scrollWidth,
  window: window.innerWidth,
  over: shown.filter((element) => box(element).right > window.innerWidth + 1).map((element) => element.outerHTML.slice(0, 120)),
  charts: document.querySelectorAll('svg[role=img]').length,
  ground: getComputedStyle(document.body).backgroundColor,
});
</script>
"""


def measured(page: str, folder: Path, width: int, *flags: str) -> dict[str, Any]:
    """In a frame of that width: a window of Chromium's cannot be narrower than 500 pixels."""
    frame = folder / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><iframe style="width: {width}px; height: 2000px; border: 0" srcdoc="{html.escape(page)}"></iframe>'
    )
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += ["--window-size=1600,2100", *flags, "--dump-dom", frame.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>MEASURED(.*?)</title>", result.stdout)
    assert title, result.stderr[-2000:]
    measurements: dict[str, Any] = json.loads(html.unescape(title[1]))
    return measurements


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    documents = [rich(), rich("a-node-with-a-long-name.rack17.cluster.example.org", 0.8)]
    result = [
        report.load(evidence.write(folder / f"{place}.json", document))
        for place, document in enumerate(documents)
    ]
    text = render.render_report(
        render.REPORT,
        report.template_values(report.build_page(result)),
        remake=["provision", "report"],
    )
    return measurable(text)


def measurable(text: str) -> str:
    without_policy, count = re.subn(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", text)
    assert count == 1
    return without_policy.replace("</body>", f"{MEASURE}</body>")


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("count", [8, 1000])
def test_nodes_fit_into_the_page_and_the_chart(tmp_path: Path, width: int, count: int) -> None:
    """Every row of nodes is one drawing."""
    nodes = drift_records.cluster(count)
    for number in range(3, count, 50):
        nodes[f"n{number:04}"] = drift_records.facts(driver="535.104.05", kernel="6.8.0-1010-aws")
    values = report.nodes_values(drift_records.record(nodes))
    text = render.render_report(render.NODES_REPORT, values, remake=["provision", "report"])
    result = measured(measurable(text), tmp_path, width)
    assert (result["window"], result["wide"], result["over"]) == (width, width, [])
    assert result["charts"] > 5


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_overflows_or_is_clipped(page: str, tmp_path: Path, width: int) -> None:
    result = measured(page, tmp_path, width)
    assert result["window"] == width
    assert (result["wide"], result["over"]) == (width, [])


def test_dark_mode(page: str, tmp_path: Path) -> None:
    light = measured(page, tmp_path, 1400)["ground"]
    dark = measured(
        page, tmp_path, 1400, "--force-dark-mode", "--blink-settings=preferredColorScheme=0"
    )["ground"]
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(19, 22, 27)"


def test_folded_facts_are_printed(tmp_path: Path) -> None:
    facts = {f"fact{number}": "value" for number in range(300)}
    document = evidence.passport(evidence.report(evidence.phase(), facts=facts))
    content = report.build_page([report.load(evidence.write(tmp_path / "p.json", document))])
    text = render.render_report(
        render.REPORT, report.template_values(content), remake=["provision", "report"]
    )
    page, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(text)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert len(re.findall(rb"/Type /Page\b", pdf.read_bytes())) > 4
