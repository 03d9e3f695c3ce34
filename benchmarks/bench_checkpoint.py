"""Checkpoints against torch's own, against the bare disk and against bare copies of memory; what the hashes cost; memory on top.

Usage: python benchmarks/bench_checkpoint.py [--gb 1] [--rounds 5] [--no-xxhash]
(needs torch: in this interpreter, or in the one that PROVISION_TEST_PYTHON names; twice the state in memory, thrice on the disk. With
--no-xxhash as if that package were not installed)

Rivals take turns, in every other round the other way around, and a ratio is the median over rounds of the two that were measured in one:
neighbors of a shared machine then slow both. A file of an earlier turn is gone, and the disk told to write all, before the next begins.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import box

ROOT = Path(__file__).resolve().parent.parent
TENSORS = 100
HASHED = 256 << 20


def main() -> None:
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    if "--here" in sys.argv:
        measure()
    elif subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print(
            f"checkpoints: not measured, {python} has no torch (name one that has in PROVISION_TEST_PYTHON)"
        )
    else:
        command = [python, "-s", "-W", "ignore", __file__, "--here", *sys.argv[1:]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def measure() -> None:
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-xxhash", action="store_true")
    chosen = parser.parse_args()
    from provision_runtime.checkpoint import hashes

    if chosen.no_xxhash:
        hashes.XXH3_128 = None
    place = box() / "checkpoint"
    bench = Bench(place, chosen.gb, chosen.rounds)
    versions = f"torch {torch.__version__}, {'with' if hashes.XXH3_128 else 'without'} xxhash"
    print(
        f"{versions}, {bench.size / 1e9:.2f} GB in {TENSORS} tensors, {os.cpu_count()} processors, {chosen.rounds} rounds"
    )
    try:
        for part in (
            bench.hashes,
            bench.saves,
            bench.loads,
            bench.blocking,
            bench.incremental,
            bench.copies,
            bench.memory,
        ):
            part()
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Bench:
    def __init__(self, place: Path, gb: float, rounds: int) -> None:
        import torch

        self.place = place
        self.rounds = rounds
        self.state = {
            f"layer{index}": torch.randn(int(gb * 1e9) // 4 // TENSORS) for index in range(TENSORS)
        }
        self.size = sum(value.numel() * 4 for value in self.state.values())

    def hashes(self) -> None:
        """Which hash pays: one that the disk does not wait for."""
        data = bytearray(os.urandom(1 << 20) * (HASHED >> 20))
        from provision_runtime.checkpoint.hashes import XXH3_128

        rivals = {"sha256": hashlib.sha256, "blake2b": hashlib.blake2b, "crc32": zlib.crc32}
        if XXH3_128:
            rivals["xxh128"] = XXH3_128
        for name, make in rivals.items():
            median_s = statistics.median(
                timed(lambda make=make: make(data)) for _ in range(self.rounds)
            )
            print(f"{name}: {HASHED / 1e9 / median_s:.2f} GB/s on one processor")
        # Neighbors of a shared machine show here: all processors at once are then less than as many times one.
        processors = len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(processors) as pool:
            median_s = statistics.median(
                timed(lambda: list(pool.map(hashlib.sha256, [data] * processors)))
                for _ in range(self.rounds)
            )
        print(
            f"sha256: {processors * HASHED / 1e9 / median_s:.2f} GB/s on all {processors} processors at once"
        )

    def saves(self) -> None:
        self.in_turn(
            {
                "save": self.save,
                "dcp.save + fsync": self.dcp_save,
                "raw write + fsync": self.raw,
                "the same, begun early": self.raw_early,
            },
            targets={"dcp.save + fsync": "1.0", "raw write + fsync": "0.9"},
        )

    def loads(self) -> None:
        """Both from the page cache, where the save has left them."""
        self.clear()
        self.save()
        self.dcp_save()
        self.state = {name: value.clone() for name, value in self.state.items()}
        self.in_turn(
            {"load, verified": self.load, "dcp.load": self.dcp_load},
            targets={"dcp.load": "0.8"},
            prepare=lambda: None,
        )

    def blocking(self) -> None:
        """How long save_async keeps the training, into new memory and into that of the save before; everything changed between."""
        from provision_runtime.checkpoint import saver
        from provision_runtime.checkpoint.async_save import HostSnapshot

        def fresh() -> None:
            saver.SNAPSHOT = HostSnapshot()
            copies.clear()
            give_back_memory()

        copies: dict[str, Any] = {}
        self.in_turn(
            {
                "save_async blocks, new memory": self.start,
                "a copy to new memory": lambda: copies.update(self.cloned()),
            },
            targets={"a copy to new memory": "1/1.2"},
            prepare=lambda: (self.settle(), fresh()),
        )
        copies.update(self.cloned())
        self.in_turn(
            {
                "save_async blocks, memory there": self.start,
                "a copy to memory there": lambda: self.copied(copies),
            },
            targets={"a copy to memory there": "1/1.2"},
            prepare=lambda: (self.settle(), self.change(TENSORS)),
        )
        self.settle()

    def incremental(self) -> None:
        """One of a hundred tensors changed, against a full save in the same round."""
        self.in_turn(
            {
                "full save": self.save_again,
                "1 % changed, by content": lambda: self.save_again(True),
                "1 % changed, save_async until committed": lambda: self.start().result(),
            },
            targets={},
            prepare=lambda: self.change(1),
            warm=True,
        )

    def copies(self) -> None:
        """Second copies of what three kept checkpoints share, one of a hundred tensors changing, and of an only checkpoint."""
        import threading

        from provision_runtime import checkpoint
        from provision_runtime.checkpoint import rehash
        from provision_runtime.checkpoint.storage import Storage

        root = self.place / "kept"
        self.clear()
        save_s, first_s, prune_s, save_cpu_s, prune_cpu_s = [], [], [], [], []
        for step in range(self.rounds + 4):
            self.change(1)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            checkpoint.save(self.state, root, step=step)
            saved, saved_cpu = time.perf_counter(), time.process_time()
            checkpoint.prune(root, keep=3)
            pruned, pruned_cpu = time.perf_counter(), time.process_time()
            if not step:
                first_s += [saved - begin, pruned - saved]
            if step > 3:
                save_s.append(saved - begin)
                prune_s.append(pruned - saved)
                save_cpu_s.append(saved_cpu - begin_cpu)
                prune_cpu_s.append(pruned_cpu - saved_cpu)
        print(
            f"copies of an only checkpoint: {first_s[1]:.2f} s, times its save: {first_s[1] / first_s[0]:.2f}"
        )
        print(
            f"prune once there are copies: {statistics.median(prune_s):.3f} s, CPU {statistics.median(prune_cpu_s):.3f} s; "
            f"times a save of 1 %: {statistics.median(prune_s) / statistics.median(save_s):.2f}, "
            f"CPU {statistics.median(prune_cpu_s) / statistics.median(save_cpu_s):.2f}"
        )
        sizes = {path.stat().st_ino: path.stat().st_size for path in root.glob("*/*")}
        copied = sum(path.stat().st_size for path in (root / "copies").iterdir())
        print(
            f"on the disk: {sum(sizes.values()) / self.size:.2f} times the state, {copied / self.size:.2f} of it second copies"
        )
        cpu_s, wall_s, storage = 0.0, 0.0, Storage(root)
        for turn in range(rehash.PARTS):
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            assert not list(rehash.rehash(storage, turn + 1, threading.Event()))
            cpu_s += time.thread_time() - begin_cpu
            wall_s += time.perf_counter() - begin
        print(
            f"hashing both copies again: CPU {cpu_s / rehash.PARTS:.3f} s a save ({2 * self.size / 1e9 / cpu_s:.1f} GB/s on one processor), "
            f"{cpu_s / wall_s:.2f} of a processor meanwhile (limit {rehash.CPU_SHARE})"
        )
        shutil.rmtree(root)

    def memory(self) -> None:
        """Peak of the process over what it had before; save_async's copy is not counted. What is turned is copied piece by piece."""
        import torch

        from provision_runtime.checkpoint import saver
        from provision_runtime.checkpoint.async_save import HostSnapshot

        saver.SNAPSHOT = HostSnapshot()
        self.save()  # what is imported at first is not the save's
        turned = {"turned": torch.randn(int(self.size**0.5) // 2, int(self.size**0.5) // 2).t()}
        actions = {
            "save": (self.save, 0),
            "save of a transposed tensor": (lambda: self.save(turned), 0),
            "save_async": (lambda: self.start().result(), self.size),
            "load": (self.load, 0),
        }
        for name, (action, own) in actions.items():
            give_back_memory()
            Path("/proc/self/clear_refs").write_text("5")
            before = status_mb("VmRSS")
            action()
            print(f"{name}: {status_mb('VmHWM') - before - own / 1e6:.0f} MB on top (target 256)")
            self.settle()

    # What is timed.

    def save(self, state: dict[str, Any] | None = None) -> None:
        from provision_runtime import checkpoint

        checkpoint.save(state or self.state, self.place / "ours", step=1, incremental=False)

    def save_again(self, incremental: bool = False, **options: Any) -> None:
        from provision_runtime import checkpoint

        checkpoint.save(self.state, self.place / "ours", step=1, incremental=incremental, **options)

    def start(self) -> Any:
        from provision_runtime import checkpoint

        self.future = checkpoint.save_async(self.state, self.place / "ours", step=1)
        return self.future

    def load(self) -> None:
        from provision_runtime import checkpoint

        checkpoint.load(self.state, self.place / "ours")

    def dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state, checkpoint_id=str(self.place / "dcp"))
        for path in [*(self.place / "dcp").iterdir(), self.place / "dcp"]:
            sync(path)

    def dcp_load(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(self.state, checkpoint_id=str(self.place / "dcp"))

    def raw(self, *, early: bool = False) -> None:
        from provision_runtime import fs
        from provision_runtime.checkpoint.memory import memory_of

        with (self.place / "raw").open("wb", buffering=0) as file:
            for value in self.state.values():
                begin = file.tell()
                file.write(memory_of(value))
                if early:
                    fs.files.start_writeback(file.fileno(), begin, file.tell() - begin)
            os.fsync(file.fileno())

    def raw_early(self) -> None:
        self.raw(early=True)

    def cloned(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.state.items()}

    def copied(self, into: dict[str, Any]) -> None:
        for name, value in self.state.items():
            into[name].copy_(value)

    # What is not.

    def change(self, count: int) -> None:
        for value in list(self.state.values())[:count]:
            value.add_(1)

    def settle(self) -> None:
        if getattr(self, "future", None) is not None:
            self.future.result()

    def clear(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        os.sync()

    def in_turn(
        self,
        rivals: dict[str, Callable[[], object]],
        *,
        targets: dict[str, str],
        prepare: Callable[[], object] | None = None,
        warm: bool = False,
    ) -> None:
        """Prints each rival's rate, and how many times the first one's is that of each other."""
        timings: dict[str, list[float]] = {name: [] for name in rivals}
        for number in range(self.rounds + warm):
            for name, action in list(rivals.items())[:: -1 if number % 2 else 1]:
                (prepare or self.clear)()
                seconds = timed(action)
                if number >= warm:
                    timings[name].append(seconds)
        for name, seconds_of in timings.items():
            print(
                f"{name}: {self.size / 1e9 / statistics.median(seconds_of):.2f} GB/s ({statistics.median(seconds_of):.3f} s)"
            )
        first, *others = timings
        for name in others:
            ratio = statistics.median(
                rival_s / own_s for own_s, rival_s in zip(timings[first], timings[name])
            )
            print(
                f"  {first}, times {name}: {ratio:.2f}"
                + (
                    f" (target {targets[name]})"
                    if name in targets
                    else f"; the other way {1 / ratio:.1f}"
                )
            )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def give_back_memory() -> None:
    """What was freed goes back to the kernel: new memory is new then, and counted."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def status_mb(field: str) -> float:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
