"""Images: cold against copying and hashing the same files once, nothing changed, one small package changed; into an engine against
`docker load` of the same bytes; bytes to a registry; peak memory.

Usage: python benchmarks/bench_image.py --base oci:DIR [--pairs N] [--docker] [--registry] [REQUEST...]
REQUEST is what `provision lock` is asked for; without one: --torch 2.3 --cuda 12.1 (5 GB, four times that on the disk). A small one:
--torch 2.13 --cpu --no-companions --no-jupyter. Each pair runs both, alternating which is first; the figure is the median of the
pairs' ratios. --docker needs the docker command and an engine that has no image of this name, --registry Debian's docker-registry.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import PROVISION, box, environment

NAME = "bench-image"
SMALL = ("einops==0.8.0", "einops==0.8.1")
PIECE = 1 << 20
LAYOUT = f"oci:{box() / 'out' / 'layout'}"


class Bench:
    """One environment in the box, whose lock changes between two small packages."""

    def __init__(self, base: str, request: list[str]) -> None:
        self.base, self._request, self._env = base, request, environment()
        self.peak_mb = 0.0

    def provision(self, *arguments: str) -> tuple[float, str]:
        """Run the command; its seconds and what it printed."""
        start = time.perf_counter()
        child = subprocess.Popen(
            [PROVISION, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
            cwd=box(),
        )
        out, err = child.communicate()
        elapsed_s = time.perf_counter() - start
        if child.returncode:
            raise SystemExit(f"provision {' '.join(arguments)}:\n{err}")
        return elapsed_s, out

    def choose(self, small: str) -> None:
        """Lock and prefix with that small package; not part of any figure."""
        self.provision(
            "lock", NAME, *self._request, "--base", self.base, "--pip", small, "--relock"
        )
        self.provision("env", "create", NAME)

    def image(self, *output: str) -> float:
        """`provision image build` into a layout, or with other options; and its peak memory (children included)."""
        shutil.rmtree(box() / "out", ignore_errors=True)  # an output replaces nothing
        words = [PROVISION, "image", "build", NAME, *(output or ("--output", LAYOUT))]
        start = time.perf_counter()
        child = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self._env, cwd=box()
        )
        assert child.stderr is not None
        err = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        elapsed_s = time.perf_counter() - start
        if child.returncode:
            raise SystemExit(err.decode())
        self.peak_mb = max(self.peak_mb, used.ru_maxrss / 1024)
        return elapsed_s

    def forget(self) -> None:
        for folder in (box() / "out", *box().glob("data/projects/*/images")):
            shutil.rmtree(folder, ignore_errors=True)

    def cold(self) -> float:
        self.forget()
        os.sync()
        return self.image()

    @property
    def layout(self) -> Path:
        return next(box().glob(f"data/projects/*/images/{NAME}"))

    @property
    def prefix(self) -> Path:
        return next(box().glob(f"data/projects/*/prefixes/{NAME}"))

    def layers(self) -> dict[str, tuple[str, int]]:
        """group: digest and size; a base's layers are numbered."""
        index = json.loads((self.layout / "index.json").read_text())
        digest = index["manifests"][0]["digest"].removeprefix("sha256:")
        rows = json.loads((self.layout / "blobs" / "sha256" / digest).read_text())["layers"]
        return {
            f"{number} {row['annotations']['org.provision.group']}": (row["digest"], row["size"])
            for number, row in enumerate(rows)
        }


def copied_and_hashed(bench: Bench) -> float:
    """The files that the image is made of, copied once and hashed once, one after the other; byte code is not among them."""
    base = bench.base.partition(":")[2]
    files = [
        path for root in (bench.prefix, Path(base)) for path in root.rglob("*") if _counts(path)
    ]
    to = box() / "copied"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    os.sync()
    start = time.perf_counter()
    for number, path in enumerate(files):
        shutil.copyfile(path, to / str(number))
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    elapsed_s = time.perf_counter() - start
    shutil.rmtree(to)
    return elapsed_s


def _counts(path: Path) -> bool:
    return path.suffix != ".pyc" and path.is_file() and not path.is_symlink()


def paired(
    pairs: int, run_own: Callable[[], float], run_rival: Callable[[], float], title: str
) -> None:
    timings = []
    for index in range(pairs):
        own_s, rival_s = (
            (run_own(), run_rival()) if index % 2 else tuple(reversed((run_rival(), run_own())))
        )
        print(f"  {title}: {own_s:.1f} s against {rival_s:.1f} s", flush=True)
        timings.append((own_s, rival_s))
    ratio = statistics.median(own_s / rival_s for own_s, rival_s in timings)
    own_s, rival_s = (statistics.median(column) for column in zip(*timings))
    print(f"{title}: median {own_s:.1f} s against {rival_s:.1f} s, ratio {ratio:.2f}")


def unchanged(bench: Bench, runs: int) -> None:
    timings = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall_s = bench.image()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        timings.append(
            (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s)
        )
    cpu_s, wall_s = (statistics.median(column) for column in zip(*timings))
    print(f"nothing changed: median {cpu_s:.2f} s CPU, {wall_s:.2f} s wall (target <= 0.4 s CPU)")


def changed(bench: Bench, runs: int) -> None:
    timings, before, ratio = [], bench.layers(), 0.0
    for index in range(runs):
        bench.choose(SMALL[(index + 1) % 2])
        timings.append(bench.image())
        after = bench.layers()
        ratio = sum(
            size for digest, size in after.values() if (digest, size) not in before.values()
        ) / sum(size for _, size in after.values())
        before = after
    print(
        f"one small package changed: median {statistics.median(timings):.2f} s (target <= 5 s), {ratio:.2%} of the bytes are new layers"
    )


def into_engine(bench: Bench, pairs: int) -> None:
    """The second package is loaded where the first is."""
    archive = box() / "image.tar"
    reference = json.loads(bench.provision("image", "build", NAME, "--json")[1])["reference"]
    subprocess.run(["docker", "save", "--output", str(archive), reference], check=True)

    def gone() -> None:
        for name in (reference, f"provision/{NAME}:latest"):
            subprocess.run(["docker", "rmi", "--force", name], capture_output=True, check=False)
        os.sync()

    def run_own() -> float:
        gone()
        return bench.image("--json")

    def run_rival() -> float:
        gone()
        start = time.perf_counter()
        subprocess.run(
            ["docker", "load", "--quiet", "--input", str(archive)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - start

    paired(pairs, run_own, run_rival, "into the engine, cold, against docker load")
    gone()
    bench.image("--json")
    for small in (SMALL[1], SMALL[0]):
        bench.choose(small)
        bench.image()
        print(f"into the engine, one small package changed: {bench.image('--json'):.2f} s")
    bench.provision("env", "remove", NAME)


@contextlib.contextmanager
def registry() -> Iterator[str]:
    folder = box() / "registry"
    folder.mkdir()
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [
        "version: 0.1",
        "log: {level: error}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
    ]
    (folder / "config.yml").write_text("\n".join([*settings, f"http: {{addr: 127.0.0.1:{port}}}"]))
    with subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            shutil.rmtree(folder)


def to_registry(bench: Bench) -> None:
    with registry() as host:
        for small, title in ((SMALL[0], "cold"), (SMALL[1], "one small package changed")):
            bench.choose(small)
            bench.image()
            elapsed_s, out = bench.provision(
                "image", "push", NAME, f"{host}/lab/bench:{small[-1]}", "--no-attach", "--json"
            )
            told = json.loads(out)
            share = told["sent"] / (told["sent"] + told["present"])
            print(
                f"to a registry, {title}: {told['sent'] / 1e6:.1f} MB sent in {elapsed_s:.1f} s, {share:.2%} of the image"
            )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--base", help="an OCI image layout on disk, as oci:DIR")
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--docker", action="store_true")
    options.add_argument("--registry", action="store_true")
    chosen, request = options.parse_known_args()
    if chosen.base is None:
        print("images: not measured, since no base was named with --base")
        return
    bench = Bench(chosen.base, request or ["--torch", "2.3", "--cuda", "12.1"])
    bench.choose(SMALL[0])
    bench.cold()  # files in the page cache
    for name, (_, size) in bench.layers().items():
        print(f"  layer {name}: {size / 1e6:.1f} MB")
    paired(
        chosen.pairs,
        bench.cold,
        lambda: copied_and_hashed(bench),
        "cold, against copying and hashing once",
    )
    unchanged(bench, chosen.pairs)
    changed(bench, chosen.pairs)
    print(f"peak memory of building: {bench.peak_mb:.0f} MB (target <= 500 MB)")
    if chosen.registry:
        to_registry(bench)
    if chosen.docker:
        bench.choose(SMALL[0])
        bench.image()
        into_engine(bench, chosen.pairs)
        print(f"peak memory with the engine: {bench.peak_mb:.0f} MB")
    bench.forget()


if __name__ == "__main__":
    main()
