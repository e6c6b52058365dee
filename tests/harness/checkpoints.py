"""Small checkpoints in the shapes of real frameworks, and the rule by which each is whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.harness.events import Event


@dataclass(frozen=True, slots=True)
class Shape:
    """A checkpoint directory with shards, and the marker in it that makes loaders take it."""

    name: str
    directory: str
    shards: tuple[str, ...]
    marker: str
    temporary_marker: bool = False

    def folder(self, step: int) -> str:
        """The name of the directory of `step`."""
        return self.directory.format(step)

    def save(self, parent: Path, step: int, size: int) -> Path:
        """Write the shards, then the marker, as the framework does."""
        (parent / self.folder(step)).mkdir()
        return self.save_again(parent, step, size)

    def save_again(self, parent: Path, step: int, size: int) -> Path:
        """The same in a directory that is there."""
        folder = parent / self.folder(step)
        folder.mkdir(exist_ok=True)
        for index, shard in enumerate(self.shards):
            (folder / shard).write_bytes(bytes([step, index]) * (size // 2))
        target = folder / self.marker
        if self.temporary_marker:
            draft = folder / (self.marker + ".tmp")
            draft.write_bytes(b"marker of step %d" % step)
            os.rename(draft, target)
        else:
            target.write_bytes(b"marker of step %d" % step)
        return folder

    def broken(self, paths: Iterable[str], parent: str = "") -> list[str]:
        """Directories in `paths` whose marker is there while a shard is missing."""
        present = set(paths)
        found = []
        for path in present:
            folder, _, name = path.rpartition("/")
            if name == self.marker and folder.startswith(parent):
                missing = [s for s in self.shards if f"{folder}/{s}" not in present]
                found += [f"{folder}: {self.marker} without {missing}"] if missing else []
        return found

    def whole(self, paths: Iterable[str]) -> set[str]:
        """Directories in `paths` that a loader would take, and could."""
        present = set(paths)
        return {
            path.rpartition("/")[0]
            for path in present
            if path.endswith(f"/{self.marker}")
            and all(f"{path.rpartition('/')[0]}/{s}" in present for s in self.shards)
        }


DCP = Shape("dcp", "step_{}", ("__0_0.distcp", "__1_0.distcp"), ".metadata", temporary_marker=True)
TRAINER = Shape(
    "trainer",
    "checkpoint-{}",
    ("config.json", "model.safetensors", "optimizer.pt", "rng_state.pth"),
    "trainer_state.json",
)
MEGATRON = Shape("megatron", "iter_{:07d}", ("__0_0.distcp", "__0_1.distcp"), "metadata.json")
SHARDED = Shape(
    "sharded",
    "step-{}",
    ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    "model.safetensors.index.json",
)
SHAPES = (DCP, TRAINER, MEGATRON, SHARDED)


def replay(start: Iterable[str], events: Iterable[Event]) -> Iterator[tuple[Event, set[str]]]:
    """The set of paths after each event: every state that another node could have seen."""
    present = set(start)
    for event, following in pairwise([*events, None]):
        assert event is not None
        assert event.what != "overflow", "the event queue overflowed: nothing is proven"
        if event.what == "appeared":
            present.add(event.path)
        elif event.what == "vanished":
            present.discard(event.path)
            below = event.path + "/"
            present = {path for path in present if not path.startswith(below)}
        if not (event.scanned and following is not None and following.scanned):
            yield event, set(present)


def paths_below(root: Path) -> set[str]:
    """Every path below `root`, relative."""
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, directories, files in os.walk(root)
        for name in [*directories, *files]
    }
