"""Training jobs in the shapes of frameworks, which may die anywhere and are started again.

Run as a program it is one job: it looks for the checkpoint to resume from as its framework does,
reads all of it, saves some more and rotates::

    jobs.py KIND DIRECTORY ATTEMPT SAVES DIE_AT SEED

It kills itself at its step number DIE_AT of the calls that change something (0: never). Its exit
status is 0, BAD when what it was to resume from is not whole, LOST when the file system failed.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BAD = 3
LOST = 4
CHUNK = 16 * 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """How a framework saves.

    Attributes:
        directory: of a step.
        files: in the order in which they are written; the last makes the loader take it.
        pointer: the file beside it that is written after all, with `{}` for the step in `text`.
        keep: how many stay; `first`: the oldest goes before the next is begun.
        marked: whether the loader wants the last file; else it takes any directory of that name.
        again: whether it sometimes saves over the newest one.
    """

    name: str
    directory: str
    files: tuple[str, ...]
    pointer: str = ""
    text: str = "{}"
    keep: int = 2
    first: bool = False
    marked: bool = False
    again: bool = False

    def step_of(self, name: str) -> int | None:
        """The step of the directory `name`; None: it is none of a checkpoint."""
        before, after = self.directory.split("{", 1)[0], self.directory.split("}", 1)[1]
        found = re.fullmatch(re.escape(before) + r"(\d+)" + re.escape(after), name)
        return None if found is None else int(found[1])


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "trainer", "checkpoint-{}",
            ("config.json", "model.safetensors", "optimizer.pt", "rng_state.pth",
             "trainer_state.json"),
        ),
        Kind(
            "accelerate", "checkpoint_{}",
            ("model.safetensors", "optimizer.bin", "random_states_0.pkl"), keep=1, first=True,
        ),
        Kind(
            "dcp", "step_{}", ("__0_0.distcp", "__1_0.distcp", ".metadata"),
            marked=True, again=True,
        ),
        Kind(
            "deepspeed", "global_step{}",
            ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            pointer="latest", text="global_step{}",
        ),
        Kind(
            "megatron", "iter_{:07d}",
            ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"),
            pointer="latest_checkpointed_iteration.txt",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is written all over a file."""

    kind: str
    step: int
    attempt: int
    name: str

    def content(self, size: int) -> bytes:
        """`size` bytes that can be told from those of any other file, and from part of them."""
        line = json.dumps([self.kind, self.step, self.attempt, self.name, size]).encode() + b"\n"
        return (line * (size // len(line) + 1))[:size]


def stamp_of(path: Path) -> Stamp | None:
    """What wrote the file `path`; None: it is not whole."""
    content = path.read_bytes()
    try:
        kind, step, attempt, name, size = json.loads(content.split(b"\n", 1)[0])
    except ValueError:
        return None
    stamp = Stamp(kind, step, attempt, name)
    return stamp if content == stamp.content(size) else None


@dataclass(slots=True)
class Found:
    """What a loader finds in a run.

    Attributes:
        whole: the steps of whole checkpoints; `bad`: what only looks so, in words.
        chosen: the step to resume from.
    """

    whole: dict[int, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    chosen: int | None = None


def look(kind: Kind, run: Path, *, torn: bool = False) -> Found:
    """What the loader of `kind` finds in `run`.

    `torn`: a pointer that a killed job left empty leads to the newest, as people would decide.
    """
    found = Found()
    try:
        names = os.listdir(run)
    except FileNotFoundError:
        return found
    for name in sorted(names):
        step = kind.step_of(name)
        if step is None or (kind.marked and not (run / name / kind.files[-1]).exists()):
            continue
        wrong, attempt = _judge(kind, run / name, step)
        if wrong:
            found.bad.append(f"{kind.name}: {name}: {wrong}")
        else:
            found.whole[step] = attempt
    found.chosen = max(found.whole, default=None)
    if kind.pointer and not (torn and _is_empty(run / kind.pointer)):
        found.chosen = _pointed(kind, run, found)
    return found


def _is_empty(path: Path) -> bool:
    return path.exists() and not path.stat().st_size


def _judge(kind: Kind, folder: Path, step: int) -> tuple[str, int]:
    """What is wrong with the checkpoint `folder`, "" if nothing is, and who made it."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if there != set(kind.files):
        return f"has {sorted(there)}", 0
    stamps = [stamp_of(folder / name) for name in kind.files]
    attempts = {stamp.attempt for stamp in stamps if stamp is not None}
    expected = [Stamp(kind.name, step, max(attempts, default=0), name) for name in kind.files]
    return ("" if stamps == expected else f"holds {stamps}"), max(attempts, default=0)


def _pointed(kind: Kind, run: Path, found: Found) -> int | None:
    """The step that the pointer names; its directory is opened by its name, listed or not."""
    try:
        text = (run / kind.pointer).read_text()
    except FileNotFoundError:
        return None
    number = re.search(r"\d+", text)
    step = None if number is None else int(number[0])
    if step is None or text != kind.text.format(step):
        found.bad.append(f"{kind.name}: {kind.pointer} says {text!r}")
        return None
    if step not in found.whole:
        wrong, _ = _judge(kind, run / kind.directory.format(step), step)
        found.bad += [f"{kind.name}: {kind.pointer} says {text!r}: {wrong}"] if wrong else []
    return step


class Job:
    """One run of a trainer."""

    def __init__(self, kind: Kind, run: Path, attempt: int, die_at: int, seed: int) -> None:
        self._kind = kind
        self._run = run
        self._attempt = attempt
        self._left = die_at
        self._random = random.Random(seed)

    def work(self, saves: int) -> int:
        """Resume, save and rotate; the exit status."""
        self._run.mkdir(exist_ok=True)
        found = look(self._kind, self._run, torn=True)
        if found.bad and not self._kind.again:
            print("\n".join(found.bad), flush=True)
            return BAD
        step = found.chosen or 0
        for _ in range(saves):
            if self._kind.again and step and self._random.random() < 0.3:
                self._save(step)
                continue
            step += 1
            if self._kind.first:
                self._rotate(self._kind.keep - 1)
            self._save(step)
            if not self._kind.first:
                self._rotate(self._kind.keep)
        return 0

    def _save(self, step: int) -> None:
        folder = self._run / self._kind.directory.format(step)
        if self._kind.first and folder.exists():
            self._remove(folder)  # it refuses a directory that exists
        self._tick()
        folder.mkdir(exist_ok=True)
        for name in self._kind.files:
            path = folder / name
            if path.parent != folder:
                self._tick()
                path.parent.mkdir(exist_ok=True)
            content = Stamp(self._kind.name, step, self._attempt, name)
            self._write(path, content.content(self._random.choice((1000, 40_000, 100_000))))
        if self._kind.pointer:
            text = self._kind.text.format(step)
            self._write(self._run / self._kind.pointer, text.encode())

    def _write(self, path: Path, content: bytes) -> None:
        """In place, or as safetensors and DCP's `.metadata` do: under another name first."""
        target = path
        if path.suffix == ".safetensors":
            path = path.with_name(f".tmp{self._random.randrange(10**6):06}")
        elif path.name == ".metadata":
            path = path.with_name(".metadata.tmp")
        self._tick()
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(content), CHUNK):
                self._tick()
                file.write(content[start : start + CHUNK])
            if path.suffix == ".safetensors":
                os.rename(path, target)
            self._tick()
        if path != target and path.exists():
            os.rename(path, target)

    def _rotate(self, keep: int) -> None:
        steps = sorted(
            step for name in os.listdir(self._run)
            if (step := self._kind.step_of(name)) is not None
        )  # fmt: skip
        for step in steps[: max(0, len(steps) - keep)]:
            self._remove(self._run / self._kind.directory.format(step))

    def _remove(self, folder: Path) -> None:
        for path in _inside_out(folder):
            self._tick()
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()

    def _tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _inside_out(folder: Path) -> Iterator[Path]:
    for path in list(folder.iterdir()):
        if path.is_dir():
            yield from _inside_out(path)
        else:
            yield path
    yield folder


def main() -> None:
    """One job."""
    name, run, attempt, saves, die_at, seed = sys.argv[1:]
    job = Job(KINDS[name], Path(run), int(attempt), int(die_at), int(seed))
    try:
        sys.exit(job.work(int(saves)))
    except OSError as error:
        print(f"{name}: {error}", flush=True)
        sys.exit(LOST)


if __name__ == "__main__":
    main()
