"""Random operations on a mount, mirrored on a plain directory, until the mount dies."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_DIRECTORIES = ("", "a", "b", "checkpoint-1")
_FILES = ("f", "g", "model.safetensors", "trainer_state.json", "latest")


@dataclass
class Storm:
    """A stream of operations on `mount`; each that returned is done on `mirror` too.

    After the mount died, `mirror` is what must be there, but for the paths of the operation
    that was under way: `uncertain`.
    """

    mount: Path
    mirror: Path
    seed: int
    done: int = 0
    uncertain: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.mirror.mkdir(parents=True, exist_ok=True)

    def run(self, limit: int) -> None:
        """Do up to `limit` operations; an OSError ends the storm and says what is uncertain."""
        for _ in range(limit):
            if not self._one():
                return

    def _one(self) -> bool:
        name, action, paths = self._choose()
        del name
        self.uncertain = set(paths)
        try:
            action(self.mount)
        except OSError as error:
            expected = self._mirror_errno(action)
            if error.errno is not None and error.errno == expected:
                self.uncertain = set()
                return True
            return False
        action(self.mirror)
        self.done += 1
        self.uncertain = set()
        return True

    def _mirror_errno(self, action: Callable[[Path], None]) -> int | None:
        try:
            action(self.mirror)
        except OSError as error:
            return error.errno
        return None

    def _choose(self) -> tuple[str, Callable[[Path], None], list[str]]:
        pick = self._random
        path, other = (os.path.join(pick.choice(_DIRECTORIES), pick.choice(_FILES)) for _ in "12")
        folder = pick.choice(_DIRECTORIES[1:])
        content = pick.randbytes(pick.choice((10, 5_000, 200_000)))
        kind = pick.choices(
            ("write", "append", "rename", "unlink", "mkdir", "rmtree", "replace", "chmod", "mvdir"),
            weights=(10, 3, 3, 2, 4, 1, 4, 2, 1),
        )[0]
        match kind:
            case "write":
                return kind, lambda root: _write(root / path, content), [path]
            case "append":
                return kind, lambda root: _append(root / path, content), [path]
            case "rename":
                return kind, lambda root: os.rename(root / path, root / other), [path, other]
            case "unlink":
                return kind, lambda root: os.unlink(root / path), [path]
            case "mkdir":
                return kind, lambda root: os.mkdir(root / folder), [folder]
            case "rmtree":
                return kind, lambda root: shutil.rmtree(root / folder), [folder]
            case "replace":
                return kind, lambda root: _replace(root / path, content), [path, path + ".tmp"]
            case "chmod":
                mode = pick.choice((0o600, 0o640, 0o644))
                return kind, lambda root: os.chmod(root / path, mode), [path]
            case _:
                target = pick.choice(_DIRECTORIES[1:])
                return kind, lambda root: os.rename(root / folder, root / target), [folder, target]


def _write(path: Path, content: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content[: len(content) // 2])
        file.write(content[len(content) // 2 :])


def _append(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(path.name + ".tmp")
    _write(draft, content)
    os.replace(draft, path)
