#!/usr/bin/env python3
"""Measure tierfs against native XFS and against cp + sha256sum + mv, in one run on one machine.

    bench/run.py [--shards N] [--size MIB] [--rounds N] [--modes passthrough daemon]
                 [--images DIR] [--json FILE]

Both tiers are XFS file systems on loop devices. Every measurement alternates native and mount, and
the best round of each counts: what disturbs a round only makes it slower. Needs root.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import measures
from tests.harness import LoopDevice, Node

MIB = 1 << 20
PASSTHROUGH = "passthrough"
MODES = (PASSTHROUGH, "daemon")
"""Whether the kernel reads and writes open files itself, or the daemon does."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` is time on tierfs over native time."""

    what: str
    native: float
    tierfs: float
    unit: str
    ratio: float
    target: str


class Bench:
    """The two tiers, a saving node and a reading node, and the measurements on them."""

    def __init__(
        self, options: argparse.Namespace, local: LoopDevice, shared: LoopDevice, mode: str
    ) -> None:
        self.mode = mode
        self.rounds: int = options.rounds
        self.size = options.size * MIB
        self.writers: int = options.writers
        self.names = measures.shard_names(options.shards)
        self.total_mib = options.size * options.shards
        self.data = memoryview(mmap.mmap(-1, 16 * MIB))  # aligned, for O_DIRECT
        self.data[:] = os.urandom(16 * MIB)
        self.native = local.mountpoint / f"native-{mode}"
        self.shared = shared.mountpoint / f"tier-{mode}"
        self.script = shared.mountpoint / f"script-{mode}"
        for directory in (self.native, self.shared, self.script):
            directory.mkdir()
        words = [] if mode == PASSTHROUGH else ["--no-passthrough"]
        self.node = Node(local.mountpoint, self.shared, f"saver-{mode}").start(*words)
        self.reader = Node(local.mountpoint, self.shared, f"reader-{mode}").start(*words)

    def close(self) -> None:
        """Unmount both nodes."""
        self.node.close()
        self.reader.close()

    def run(self) -> list[Row]:
        """Every measurement, in an order that needs the least space."""
        self._touch_memory()
        saves, reads = self._saves(), self._reads()
        self._clear()
        return [*saves, *self._other_saves(), *reads, self._small()]

    def _clear(self) -> None:
        measures.remove(self.native / "step")
        measures.remove(self.node.mount / f"step_{self.rounds - 1}")
        self.node.settle(timeout=600)

    def _other_saves(self) -> list[Row]:
        rows = []
        ways = [("O_DIRECT", measures.write_direct), ("mmap", measures.write_mapped)]
        for what, write in ways:
            native, mount = [], []
            for _ in range(self.rounds):
                for directory, times in ((self.native, native), (self.node.mount, mount)):
                    os.sync()
                    times.append(
                        measures.save_burst(
                            directory / "way", self.names, self.size, self.writers, self.data, write
                        )
                    )
                    measures.remove(directory / "way")
                self.node.settle(timeout=600)
            rows.append(
                self._throughput(f"save burst, {what}", min(native), min(mount), "at most 1.05")
            )
        return rows

    def _touch_memory(self) -> None:
        """The first use of a page of a new machine is several times slower than the next."""
        for directory in (self.native / "warm-up", self.node.mount / "warm-up"):
            self._burst(directory)
        self.node.settle(timeout=600)
        for directory in (self.native / "warm-up", self.node.mount / "warm-up"):
            measures.remove(directory)
        self.node.settle(timeout=600)

    def _burst(self, directory: Path) -> float:
        return measures.save_burst(directory, self.names, self.size, self.writers, self.data)

    def _saves(self) -> list[Row]:
        native, mount, script, durable = [], [], [], []
        for number in range(self.rounds):
            last = number == self.rounds - 1
            os.sync()
            native.append(self._burst(self.native / "step"))
            script.append(
                native[-1]
                + measures.copy_script(self.native / "step", self.script / "step", self.names)
            )
            measures.remove(self.script / "step")
            os.sync()
            step = self.node.mount / f"step_{number}"
            started = time.perf_counter()
            mount.append(self._burst(step))
            self.node.settle(timeout=600)
            durable.append(time.perf_counter() - started)
            if not measures.same_content(self.native / "step", self.shared / step.name, self.names):
                raise RuntimeError("what arrived on the shared tier differs")
            if not last:
                measures.remove(self.native / "step")
                measures.remove(step)
                self.node.settle(timeout=600)
        return [
            self._throughput("save burst", min(native), min(mount), "at most 1.05"),
            self._throughput("durable, against the script", min(script), min(durable), "below 1"),
        ]

    def _reads(self) -> list[Row]:
        step = f"step_{self.rounds - 1}"
        native, warm, direct, through = [], [], [], []
        native_mapped, mapped = [], []
        for _ in range(self.rounds + 1):  # the first round fills the caches
            native.append(measures.read_all(self.native / "step", self.names))
            warm.append(measures.read_all(self.node.mount / step, self.names))
            native_mapped.append(measures.read_mapped(self.native / "step", self.names))
            mapped.append(measures.read_mapped(self.node.mount / step, self.names))
        for _ in range(self.rounds):
            for name in self.names:
                measures.drop_from_cache(self.shared / step / name)
            direct.append(measures.read_all(self.shared / step, self.names))
            for name in self.names:
                measures.drop_from_cache(self.shared / step / name)
                measures.drop_from_cache(self.reader.mount / step / name)
            through.append(measures.read_all(self.reader.mount / step, self.names))
        return [
            self._throughput("warm read", min(native), min(warm), "at most 1.05"),
            self._throughput("warm read, mmap", min(native_mapped), min(mapped), "at most 1.05"),
            self._throughput("fall-through read", min(direct), min(through), "at most 1.05"),
        ]

    def _small(self) -> Row:
        count = 2000
        native, mount = [], []
        for number in range(self.rounds):
            native.append(measures.small_files(self.native / f"small{number}", count))
            mount.append(measures.small_files(self.node.mount / f"small{number}", count))
            self.node.settle(timeout=600)
        one, other = (1e6 * min(times) / count for times in (native, mount))
        return Row(
            f"{self.mode}: small file: create, write, close", one, other, "µs", other / one,
            f"≤ 150 µs over native (here {other - one:.0f})",
        )  # fmt: skip

    def _throughput(self, what: str, native: float, mount: float, target: str) -> Row:
        rates = (self.total_mib / seconds for seconds in (native, mount))
        return Row(f"{self.mode}: {what}", *rates, "MiB/s", mount / native, target)


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [f"{'':46}{'native':>10}{'tierfs':>10}        {'ratio':>7}  target of the ratio"]
    lines += [
        f"{row.what:46}{row.native:10.0f}{row.tierfs:10.0f} {row.unit:6} {row.ratio:7.2f}"
        f"  {row.target}"
        for row in rows
    ]
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """The command line; the sizes fit the memory of the machine by default."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shards = max(1, min(4, memory // 8 // (256 * MIB)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=shards)
    parser.add_argument("--size", type=int, default=256, help="MiB a shard")
    parser.add_argument("--writers", type=int, default=2, help="shards written at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--images", type=Path, help="where the images go (default: memory)")
    parser.add_argument("--json", type=Path, help="write the table as JSON too")
    return parser.parse_args()


def main() -> int:
    """Run everything on devices of our own and print the table."""
    chosen = options()
    space = 4 * chosen.shards * chosen.size * MIB + 512 * MIB
    images = chosen.images or Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tierfs-bench-", dir=images) as folder:
        root = Path(folder)
        with LoopDevice(root, "local", space) as local, LoopDevice(root, "shared", space) as shared:
            rows = []
            for mode in chosen.modes:
                bench = Bench(chosen, local, shared, mode)
                try:
                    rows += bench.run()
                finally:
                    bench.close()
                measures.remove(bench.shared)
                measures.remove(bench.node.root)
    print(table(rows))
    if chosen.json:
        facts = {"shards": chosen.shards, "size_mib": chosen.size, "kernel": os.uname().release}
        document = {**facts, "cpus": os.cpu_count(), "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
