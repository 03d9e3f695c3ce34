"""The record of compared nodes, and the lines that are printed of it."""

from __future__ import annotations

from provision.cluster.failures import NodeFailure
from provision.core.documents import DriftRecord
from provision.core.schema import schema_error
from provision.verbs.drift.output import drift_lines
from tests.drift_records import DRIVER, cluster, facts, observed, record, selection_of, timed_out


def lines(document: DriftRecord, *, verbose: bool = False) -> list[str]:
    assert schema_error(document, "drift") is None
    return drift_lines(document, selection_of(document), verbose=verbose)


def test_all_the_same() -> None:
    document = record(cluster(1000))
    assert (document["verdict"], document["counts"]["same"]) == ("same", 1000)
    assert lines(document) == ["train on a100: 1000 nodes, all the same"]
    assert any(
        line.startswith("driver") and DRIVER in line for line in lines(document, verbose=True)
    )


def test_outliers_by_node_set() -> None:
    old = facts(driver="535.104.05")
    document = record(cluster(1000, n0042=old, n0600=old))
    assert document["nodes"][41] == {
        "name": "n0042",
        "verdict": "drift",
        "differs": {"driver": "535.104.05"},
    }
    assert lines(document) == [
        "train on a100: 2 of 1000 nodes deviate, 998 the same",
        "",
        f"n[0042,0600]: driver 535.104.05; on 998 nodes: {DRIVER}",
    ]


def test_no_answer_is_unknown_and_says_what_to_do() -> None:
    document = record(cluster(3), {"n0004": timed_out()})
    assert (document["verdict"], document["counts"]["unknown"]) == ("unknown", 1)
    text = "\n".join(lines(document))
    assert "1 unknown, 3 the same" in text
    assert "n0004: no answer, timed-out" in text and "Try it alone" in text


def test_failures_of_one_reason_are_one_row() -> None:
    document = record(cluster(3), {name: timed_out(f"{name} is late") for name in ("x1", "x2")})
    [row] = document["failures"]
    assert (row["nodes"], row["message"]) == ("x[1-2]", "x1 is late")


def test_unread_fact_is_unknown() -> None:
    node = facts()
    values = {name: value for name, value in node["facts"].items() if name != "driver"}
    unread = observed(values, {"driver": "Permission denied"})
    document = record(cluster(3, n0002=unread))
    assert document["counts"] == {"nodes": 3, "same": 2, "drift": 0, "unknown": 1}
    assert "n0002: driver is unknown: Permission denied" in lines(document)


def test_two_populations_have_no_outliers() -> None:
    other = facts(kernel="6.8.0")
    document = record(cluster(4, n0003=other, n0004=other))
    assert document["counts"]["drift"] == 4
    assert "n[0001-0002]: kernel 5.15.0-1053-aws; no value has a majority" in lines(document)


def test_distributions_by_name() -> None:
    same = {"distribution:torch": "2.3.1 (files 1a)", "distribution:einops": "0.8 (files 2b)"}
    other = {"distribution:torch": "2.3.1 (files 9f)", "distribution:einops": None}
    nodes = {"n1": facts(**same), "n2": facts(**same), "n3": facts(**other)}
    assert lines(record(nodes))[2:4] == [
        "n3: einops not installed; on 2 nodes: 0.8 (files 2b)",
        "n3: torch 2.3.1 (files 9f); on 2 nodes: 2.3.1 (files 1a)",
    ]


def test_many_distributions_are_counted() -> None:
    old = {f"distribution:p{number:02}": "1.0" for number in range(60)}
    new = {f"distribution:p{number:02}": "2.0" for number in range(60)}
    nodes = {"n1": facts(**new), "n2": facts(**new), "n3": facts(**old)}
    line = lines(record(nodes))[2]
    assert line.startswith("n3: 60 distributions differ: p00, p01") and "--json" in line


def test_environment_that_no_node_has() -> None:
    nodes = {name: observed({"environment": None, "driver": DRIVER}) for name in ("n1", "n2")}
    document = record(nodes)
    assert "n[1-2]: environment not installed" in lines(document)
    assert document["verdict"] == "drift"


def test_node_without_the_environment_has_no_lock_to_compare() -> None:
    kernel = facts()["facts"]["kernel"]
    node = observed({"environment": None, "driver": DRIVER, "kernel": kernel})
    [entry] = [row for row in record(cluster(3, n0002=node))["nodes"] if "without" in row]
    assert entry["name"] == "n0002" and {"lock", "files"} <= set(entry["without"])
    assert set(entry["differs"]) == {"environment"}


def test_second_name_of_a_node_is_no_node() -> None:
    same = NodeFailure(
        stage="check", reason="same-node", message="desk3 and n1 are the same machine"
    )
    document = record(cluster(2), {"desk3": same})
    assert (document["counts"]["nodes"], document["verdict"]) == (2, "same")
    assert document["notes"] == ["desk3 and n1 are the same machine; it was compared once."]
