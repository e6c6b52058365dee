#!/usr/bin/env python3
"""Measure tierfs against native XFS and against cp + sha256sum + mv, in one run on one machine.

    bench/run.py [--shards N] [--size MIB] [--rounds N] [--modes passthrough daemon]
                 [--parts saves ways interference outage reads plain small metadata fio]
                 [--images DIR] [--json FILE]

Both tiers are XFS file systems on loop devices. Every measurement alternates native and mount, and
the best round of each counts: what disturbs a round only makes it slower. Needs root.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import fio, interference, measures, outage, plain, scale
from tests.harness import LoopDevice, Node

KIB, MIB = 1 << 10, 1 << 20
PASSTHROUGH = "passthrough"
MODES = (PASSTHROUGH, "daemon")
"""Whether the kernel reads and writes open files itself, or the daemon does."""

PARTS = (
    "saves", "ways", "interference", "outage", "reads", "plain", "small", "metadata", "fio",
    "scale",
)  # fmt: skip
SMALL_FILES = 2000
FIO_BYTES = 256 * MIB
BELIEVED_SECONDS = 1.0
"""After that the kernel asks again for every name and attribute."""


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
        self.local, self.tier = local, shared
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

    def run(self, parts: list[str]) -> Iterator[Row]:
        """The measurements of `parts`, in an order that needs the least space."""
        if {"saves", "ways", "interference", "outage", "reads", "plain"} & set(parts):
            self._touch_memory()
        if {"saves", "reads"} & set(parts):
            yield from self._saves()
        if "reads" in parts:
            yield from self._reads()
        if {"saves", "reads"} & set(parts):
            self._clear()
        if "ways" in parts:
            yield from self._other_saves()
        if "interference" in parts:
            yield from self._interference()
        if "outage" in parts:
            yield self._outage()
        if "plain" in parts:
            yield from self._against_plain()
        if {"small", "metadata"} & set(parts):
            yield self._small()
        if "metadata" in parts:
            yield from self._metadata()
        if "fio" in parts and fio.is_installed():
            yield from self._fio()

    def _clear(self) -> None:
        measures.remove(self.native / "step")
        measures.remove(self.node.mount / f"step_{self.rounds - 1}")
        self.node.settle(timeout=600)
        self.node.cli("purge", self.node.mount)  # it is the last whole one, and would be kept
        self.node.settle(timeout=600)

    def _metadata(self) -> list[Row]:
        """On the small files that are there from before, all of them committed."""
        here, there = self.native / "small0", self.node.mount / "small0"
        ways = {
            "stat of each name": measures.look_at_all,
            "ls -l": partial(measures.command, "ls", "-l"),
            "find -type f": lambda directory: measures.command("find", directory, "-type", "f"),
        }
        rows = []
        for what, way in ways.items():
            native, mount = [], []
            for _ in range(self.rounds):
                time.sleep(BELIEVED_SECONDS)
                native.append(way(here))
                mount.append(way(there))
            one, other = (SMALL_FILES / min(times) for times in (native, mount))
            rows.append(
                Row(f"{self.mode}: {what}", one, other, "names/s", one / other, "no target")
            )
        return rows

    def _fio(self) -> list[Row]:
        """Three places at once: the target is the local directory, the shared one stands beside."""
        rows = []
        places = (self.native, self.node.mount, self.shared)
        for directory in places:
            data = directory / "fio.data"
            measures.write_buffered(data, FIO_BYTES, self.data)
            if directory == self.node.mount:
                self.node.settle(timeout=600)
        for engine in fio.ENGINES:
            for pattern in fio.PATTERNS:
                local, mount, shared = (
                    fio.rate(directory, pattern, engine, FIO_BYTES) for directory in places
                )
                self.node.settle(timeout=600)
                rows.append(
                    Row(
                        f"{self.mode}: fio {engine}, {pattern.name}", local, mount, "MiB/s",
                        local / mount, f"shared directory: {shared:.0f}",
                    )
                )  # fmt: skip
        for directory in places[:2]:
            (directory / "fio.data").unlink()
        self.node.settle(timeout=600)
        return rows

    def _other_saves(self) -> list[Row]:
        rows = []
        ways = [("O_DIRECT", measures.write_direct), ("mmap", measures.write_mapped)]
        for what, write in ways:
            native, mount = [], []
            for number in range(self.rounds):
                for directory in self._order(number):
                    os.sync()
                    seconds = measures.save_burst(
                        directory / "way", self.names, self.size, self.writers, self.data, write
                    )
                    (native if directory == self.native else mount).append(seconds)
                    measures.remove(directory / "way")
                self.node.settle(timeout=600)
            rows.append(
                self._throughput(f"save burst, {what}", min(native), min(mount), "at most 1.05")
            )
        return rows

    def _interference(self) -> Iterator[Row]:
        for limit in interference.LIMITS:
            quiet, busy = interference.bursts(self.node, self._burst, self.rounds, limit)
            what = f"save burst beside write-back, bwlimit {limit}"
            yield self._throughput(what, quiet, busy, "no target; first column: nothing to send")

    def _outage(self) -> Row:
        words = [] if self.mode == PASSTHROUGH else ["--no-passthrough"]
        healthy, hung = outage.bursts(self.local, self.tier, words, self._burst, self.rounds)
        target = "at most 1.10; first column: the tier is healthy"
        return self._throughput("save burst in an outage", healthy, hung, target)

    def _against_plain(self) -> list[Row]:
        """The first column is what pyfuse3 does when there is nothing but pyfuse3.

        And passthrough, where that is on.
        """
        behind = self.local.mountpoint / "behind-plain"
        behind.mkdir()
        times: dict[str, tuple[list[float], list[float]]] = {
            what: ([], []) for what in ("save burst", "read not cached", "small file")
        }
        program = "bench.floor" if self.mode == PASSTHROUGH else "bench.plain"
        with plain.mounted(behind, self.local.mountpoint / "plain", program) as other:
            for number in range(self.rounds):
                places = [other, self.node.mount][:: 1 if number % 2 else -1]
                for place in places:
                    at = int(place == self.node.mount)
                    seconds = self._saved_and_read(place / f"plain{number}")
                    for what, each in zip(times, seconds, strict=True):
                        times[what][at].append(each)
                for place in (behind, self.node.mount):  # the other one does not list anything
                    measures.remove(place / f"plain{number}")
                self.node.settle(timeout=600)
        measures.remove(behind)
        rows = []
        for what, (alone, mount) in times.items():
            one, ours = min(alone), min(mount)
            head = f"{self.mode}: {what}, against plain pyfuse3"
            if what == "small file":
                micro = [1e6 * each / SMALL_FILES for each in (one, ours)]
                rows.append(Row(head, *micro, "µs", ours / one, "no target"))
            else:
                rates = [self.total_mib / each for each in (one, ours)]
                target = "no target" if self.mode == PASSTHROUGH else "at most 1.0"
                rows.append(Row(head, *rates, "MiB/s", ours / one, target))
        return rows

    def _saved_and_read(self, directory: Path) -> tuple[float, float, float]:
        os.sync()
        save = self._burst(directory)
        for name in self.names:
            measures.drop_from_cache(directory / name)
        read = measures.read_all(directory, self.names)
        return save, read, measures.small_files(directory / "small", SMALL_FILES)

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
            step = self.node.mount / f"step_{number}"
            # who comes second takes pages that nobody used yet: they are slower
            for place in self._order(number):
                os.sync()
                if place == self.native:
                    native.append(self._burst(self.native / "step"))
                    continue
                started = time.perf_counter()
                mount.append(self._burst(step))
                (step / ".metadata").write_bytes(b"the shards are complete")
                self.node.settle(timeout=600)
                durable.append(time.perf_counter() - started)
            # behind both: what it removes is freed in the background
            script.append(
                native[-1]
                + measures.copy_script(self.native / "step", self.script / "step", self.names)
            )
            measures.remove(self.script / "step")
            if not measures.same_content(self.native / "step", self.shared / step.name, self.names):
                raise RuntimeError("what arrived on the shared tier differs")
            if number < self.rounds - 1:
                measures.remove(self.native / "step")
                measures.remove(step)
                self.node.settle(timeout=600)
        return [
            self._throughput("save burst", min(native), min(mount), "at most 1.05"),
            self._throughput("durable, against the script", min(script), min(durable), "below 1"),
            self._durable(min(durable) - min(mount)),
            self._two_shards(),
        ]

    def _order(self, number: int) -> tuple[Path, Path]:
        """Native and mount, in the order of round `number`: each is first in turn."""
        places = (self.native, self.node.mount)
        return places if number % 2 == 0 else (places[1], places[0])

    def _durable(self, seconds: float) -> Row:
        """What comes after the burst, against the slower one of its two halves alone."""
        step = self.native / "step"
        alone = []
        for _ in range(self.rounds):
            alone.append(measures.write_and_read_back(step, self.script / "alone", self.names))
            measures.remove(self.script / "alone")
        hashing = min(measures.hash_twice(step, self.names) for _ in range(self.rounds))
        slower = max(min(alone), hashing)
        return self._throughput("durable, against its slower half", slower, seconds, "at most 1.15")

    def _two_shards(self) -> Row:
        """A save that is over in a moment: what open and close cost counts."""
        names = self.names[:2]
        native, mount = [], []
        for number in range(2 * self.rounds):
            for directory in self._order(number):
                os.sync()
                seconds = measures.save_burst(directory / "two", names, self.size, 2, self.data)
                (native if directory == self.native else mount).append(seconds)
                measures.remove(directory / "two")
            self.node.settle(timeout=600)
        rates = (len(names) * self.size / MIB / min(times) for times in (native, mount))
        ratio = min(mount) / min(native)
        what = f"{self.mode}: save burst, two shards"
        return Row(what, *rates, "MiB/s", ratio, "at most 1.05")

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
        count = SMALL_FILES
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


HEAD = f"{'':50}{'native':>10}{'tierfs':>10}         {'ratio':>7}  target of the ratio"


def line(row: Row) -> str:
    """A row for people."""
    return (
        f"{row.what:50}{row.native:10.0f}{row.tierfs:10.0f} {row.unit:7} {row.ratio:7.2f}"
        f"  {row.target}"
    )


def options() -> argparse.Namespace:
    """The command line; the sizes fit the memory of the machine by default."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shards = max(1, min(4, memory // 8 // (256 * MIB)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=shards)
    parser.add_argument("--size", type=int, default=256, help="MiB a shard")
    parser.add_argument("--writers", type=int, default=2, help="shards written at once")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--files", type=int, default=20_000, help="of the part `scale`")
    parser.add_argument("--images", type=Path, help="where the images go (default: memory)")
    parser.add_argument("--json", type=Path, help="write the table as JSON too")
    return parser.parse_args()


def available() -> int:
    """The bytes of memory that can be taken without pushing others out (MemAvailable)."""
    fields = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * KIB


def main() -> int:
    """Run everything on devices of our own and print the table."""
    chosen = options()
    space = 4 * chosen.shards * chosen.size * MIB + 1024 * MIB
    if "scale" in chosen.parts:
        space += 8 * KIB * chosen.files
    if not chosen.images and 2 * space > available():
        print(
            f"bench: the images may take {2 * space // MIB} MiB of memory, and "
            f"{available() // MIB} are free: fewer or smaller shards, or --images on a disk",
            file=sys.stderr,
        )
        return 2
    # a `timeout` around it must not leave mounts and images in memory behind
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    images = chosen.images or Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tierfs-bench-", dir=images) as folder:
        root = Path(folder)
        with LoopDevice(root, "local", space) as local, LoopDevice(root, "shared", space) as shared:
            rows: list[Row] = []
            print(HEAD, flush=True)
            if "scale" in chosen.parts:
                for found in scale.run(local, shared, chosen.files, chosen.files // 10):
                    rows.append(Row(*found))
                    print(line(rows[-1]), flush=True)
            for mode in chosen.modes if set(chosen.parts) - {"scale"} else ():
                bench = Bench(chosen, local, shared, mode)
                try:
                    for row in bench.run(chosen.parts):
                        rows.append(row)
                        print(line(row), flush=True)
                finally:
                    bench.close()
                measures.remove(bench.shared)
                measures.remove(bench.node.root)
    if chosen.json:
        facts = {"shards": chosen.shards, "size_mib": chosen.size, "kernel": os.uname().release}
        document = {**facts, "cpus": os.cpu_count(), "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
