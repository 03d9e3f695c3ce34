"""CPU and memory of the caller for `nodes check`, a ship that has nothing to do, and `drift`, on many simulated nodes.

Usage: python benchmarks/bench_scale.py [NODES ...]   (1000 5000)

Each node is a process on this machine, whose CPU is not the caller's. One node does the work and its replies are
recorded; the others print them, under their own names. One node in twenty has one of ten faults (in ship none: it stops
at many). Each measurement is a process of its own. The outputs are written next to the nodes, for their reader.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

from bench_ship import image, ship
from measure import box

from provision.cli.console import Console
from provision.cluster.inventory import NodeDefaults, NodeSelection, select_nodes
from provision.cluster.pack import Pack
from provision.verbs.drift import output, survey
from provision.verbs.nodes import nodes as check
from provision.verbs.nodes.output import check_lines

TARGET_MS, TARGET_MIB = 4.0, 150
VERBS = ("check", "ship", "drift")
FIRST = "n00001"
# The action is in the last line of the program that a node reads.
ACTION = r"""sed -n 's/^importlib.*json.loads(.\["\([a-z-]*\)".*/\1/p'"""
RECORD = """\
cat > {folder}/in.$$
action=$({action} {folder}/in.$$)
{python} "$@" < {folder}/in.$$ | tee {folder}/$action
rm {folder}/in.$$
"""
# The faults of a node, by its number: what it prints and how it ends.
ANSWER = """\
action=$({action})
number=${{PROVISION_NODE_NAME#n}}
now=$(date +%s)
while [ "${{number#0}}" != "$number" ]; do number=${{number#0}}; done
if [ {faulty} = 1 ] && [ $((number % 20)) = 7 ]; then
  case $((number / 20 % 10)) in
    0) echo "ssh: connect to host $PROVISION_NODE_NAME port 22: No route to host" >&2; exit 255;;
    1) echo "ssh: connect to host $PROVISION_NODE_NAME port 22: Connection refused" >&2; exit 255;;
    2) echo "ops@$PROVISION_NODE_NAME: Permission denied (publickey)." >&2; exit 255;;
    3) echo "Host key verification failed." >&2; exit 255;;
    4) echo "sh: 1: python3: not found" >&2; exit 127;;
    5) echo "ssh: Could not resolve hostname $PROVISION_NODE_NAME" >&2; exit 255;;
    6) kill -9 $$;;
    7) echo "Connection closed by 10.0.0.1 port 22" >&2; exit 255;;
    8) echo "Segmentation fault" >&2; exit 1;;
    9) now=$((now + 100000));;
  esac
fi
exec sed -E "s/{first}/$PROVISION_NODE_NAME/g; s/\\"(time|started|ended)\\": *[0-9.]+/\\"\\\\1\\": $now/g" {folder}/$action
"""


def selection(count: int, script: Path) -> NodeSelection:
    nodes = select_nodes(f"exec:n[{1:05}-{count:05}]")
    store = PurePosixPath(box(), "scale", "store")
    defaults = NodeDefaults(path=store, python=f"sh {shlex.quote(str(script))}")
    return dataclasses.replace(nodes, defaults=defaults)


def run(verb: str, nodes: NodeSelection) -> list[str]:
    console = Console(as_json=True)
    if verb == "check":
        return check_lines(check.check(nodes, console), width=80)
    if verb == "ship":
        ship(nodes, packed(box() / "scale"))
        return []
    compared = survey.survey(survey.DriftRequest(name="bench", selection=nodes))
    return output.drift_lines(compared, nodes, verbose=False, width=80)


def packed(folder: Path) -> Pack:
    """The same for every process."""
    sidecar = folder / "sidecar.json"
    if not sidecar.exists():
        pack = image(folder)
        sidecar.write_text(json.dumps({"image": str(pack.image), **pack.sidecar}))
    document = json.loads(sidecar.read_text())
    return Pack(image=Path(document.pop("image")), sidecar=document)


def scripts(folder: Path) -> dict[str, Path]:
    values = {
        "folder": shlex.quote(str(folder)),
        "action": ACTION,
        "python": shlex.quote(sys.executable),
        "first": FIRST,
    }
    texts = {
        "record": RECORD.format(**values),
        "healthy": ANSWER.format(**values, faulty=0),
        "faulty": ANSWER.format(**values, faulty=1),
    }
    paths = {name: folder / f"{name}.sh" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    return paths


def measure(verb: str, count: int) -> tuple[float, float]:
    """Milliseconds of CPU for each node, and MiB at most, of a process of its own."""
    words = [sys.executable, __file__, "--caller", verb, str(count)]
    printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return float(printed[0]), float(printed[1])


def main() -> None:
    folder = box() / "scale"
    if sys.argv[1:2] == ["--caller"]:
        verb, count = sys.argv[2], int(sys.argv[3])
        script = scripts(folder)["healthy" if verb == "ship" else "faulty"]
        before = resource.getrusage(resource.RUSAGE_SELF)
        lines = run(verb, selection(count, script))
        after = resource.getrusage(resource.RUSAGE_SELF)
        (folder / f"{verb}-{count}.txt").write_text("\n".join(lines))
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(1000 * cpu_s / count, after.ru_maxrss / 1024)
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    recording = selection(1, scripts(folder)["record"])
    for verb in ("ship", *VERBS):  # the first ship installs, the second has nothing to do
        run(verb, recording)
    for count in map(int, sys.argv[1:] or ("1000", "5000")):
        for verb in VERBS:
            cpu_ms, mib = measure(verb, count)
            print(f"{verb} of {count} nodes: {cpu_ms:.2f} ms CPU a node, {mib:.0f} MiB", flush=True)
    print(f"targets: {TARGET_MS:g} ms, {TARGET_MIB} MiB; outputs: {folder}/*.txt")


if __name__ == "__main__":
    main()
