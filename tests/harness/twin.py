"""Each step is done on a mount and on a plain directory, and has to come out the same."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HANDLES = 4
"""Files that are open at one time, at most; the oldest is closed first."""

Step = tuple[str, tuple[object, ...]]


@dataclass
class Twin:
    """The two directories and the files that are open in both.

    Handles are for reading and writing: a reader beside a later writer may go on with what it has
    (docs/DEVIATIONS.md).
    """

    mount: Path
    plain: Path
    handles: list[tuple[int, int]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def step(self, name: str, arguments: Sequence[object]) -> None:
        """One call on both; AssertionError with all steps so far if they differ."""
        said = (repr(each) for each in arguments)
        self.done.append(f"{name}({', '.join(each[:40] for each in said)})")
        call: Callable[..., object] = getattr(self, name)
        got, want = (self._outcome(call, side, arguments) for side in (0, 1))
        if name == "hold" and got[0] == want[0] == "ok":
            self.handles.append((got[1], want[1]))  # type: ignore[arg-type]
            if len(self.handles) > HANDLES:
                self.let_go()
            return
        assert got == want, "\n".join([*self.done, f"mount: {got!r}, plain: {want!r}"])

    def let_go(self, index: int = 0) -> None:
        """Close an open file on both sides."""
        if self.handles:
            for fd in self.handles.pop(index % len(self.handles)):
                os.close(fd)

    def close(self) -> None:
        """Close all open files."""
        while self.handles:
            self.let_go()

    def _outcome(
        self, call: Callable[..., object], side: int, arguments: Sequence[object]
    ) -> tuple[str, object]:
        try:
            found = call(side, *arguments)
        except OSError as error:
            # POSIX allows both for a directory that has names in it; XFS says EEXIST at a rename
            code = errno.ENOTEMPTY if error.errno == errno.EEXIST else error.errno
            return "error", errno.errorcode[code or 0]
        return "ok", found

    def at(self, side: int, path: str) -> str:
        """`path` on one side."""
        return os.path.join((self.mount, self.plain)[side], path)

    # -- the calls -------------------------------------------------------------------------------

    def write(self, side: int, path: str, data: bytes) -> None:
        fd = os.open(self.at(side, path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
            file.write(data)

    def append(self, side: int, path: str, data: bytes) -> None:
        fd = os.open(self.at(side, path), os.O_WRONLY | os.O_APPEND)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
            file.write(data)

    def truncate(self, side: int, path: str, size: int) -> None:
        os.truncate(self.at(side, path), size)

    def read(self, side: int, path: str) -> bytes:
        fd = os.open(self.at(side, path), os.O_RDONLY)
        try:
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)

    def hold(self, side: int, path: str) -> int:
        return os.open(self.at(side, path), os.O_RDWR | os.O_CREAT, 0o640)

    def poke(self, side: int, index: int, data: bytes, offset: int) -> int | None:
        if not self.handles:
            return None
        return os.pwrite(self.handles[index % len(self.handles)][side], data, offset)

    def peek(self, side: int, index: int) -> object:
        if not self.handles:
            return None
        fd = self.handles[index % len(self.handles)][side]
        return os.pread(fd, 1 << 20, 0), os.fstat(fd).st_size

    def unlink(self, side: int, path: str) -> None:
        os.unlink(self.at(side, path))

    def rename(self, side: int, old: str, new: str) -> None:
        os.rename(self.at(side, old), self.at(side, new))

    def link(self, side: int, old: str, new: str) -> None:
        os.link(self.at(side, old), self.at(side, new), follow_symlinks=False)

    def symlink(self, side: int, target: str, path: str) -> None:
        os.symlink(target, self.at(side, path))

    def mkdir(self, side: int, path: str) -> None:
        os.mkdir(self.at(side, path))

    def rmdir(self, side: int, path: str) -> None:
        os.rmdir(self.at(side, path))

    def chmod(self, side: int, path: str, mode: int) -> None:
        os.chmod(self.at(side, path), mode)

    def setxattr(self, side: int, path: str, value: bytes) -> None:
        os.setxattr(self.at(side, path), "user.note", value)

    def getxattr(self, side: int, path: str) -> bytes:
        return os.getxattr(self.at(side, path), "user.note")

    def look(self, side: int, path: str) -> object:
        st = os.lstat(self.at(side, path))
        if stat.S_ISDIR(st.st_mode):
            return st.st_mode
        return st.st_mode, st.st_size, st.st_nlink

    def names(self, side: int, path: str) -> list[str]:
        return sorted(os.listdir(self.at(side, path)))

    def finish(self) -> None:
        """Both must hold the same."""
        got, want = (tree(side) for side in (self.mount, self.plain))
        assert got == want, "\n".join([*self.done, f"mount: {got!r}", f"plain: {want!r}"])


def tree(root: Path) -> dict[str, object]:
    """What is below `root`: kinds, modes, contents, links, xattrs."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        st = os.lstat(path)
        what: object = None
        if stat.S_ISREG(st.st_mode):
            what = path.read_bytes(), st.st_nlink
        elif stat.S_ISLNK(st.st_mode):
            what = os.readlink(path)
        xattrs = {
            name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)
            if name == "user.note"
        }
        found[str(path.relative_to(root))] = (st.st_mode, what, xattrs)
    return found


def random_step(chance: random.Random, paths: Sequence[str]) -> Step:
    """A step on some of `paths`."""
    one, other = chance.choice(paths), chance.choice(paths)
    data = chance.randbytes(chance.choice([0, 1, 100, 9000]))
    index, size = chance.randrange(HANDLES), chance.choice([0, 3, 5000])
    steps: list[Step] = [
        ("write", (one, data)), ("write", (other, data)), ("append", (one, data)),
        ("truncate", (one, size)), ("read", (one,)), ("hold", (one,)),
        ("poke", (index, data, size)),
        ("peek", (index,)), ("unlink", (one,)), ("rename", (one, other)), ("link", (one, other)),
        ("symlink", (os.path.basename(other), one)), ("mkdir", (one,)), ("mkdir", (other,)),
        ("rmdir", (one,)), ("chmod", (one, chance.choice([0o600, 0o755]))),
        ("setxattr", (one, data[:20])), ("getxattr", (one,)), ("look", (one,)),
        ("names", (os.path.dirname(one),)),
    ]  # fmt: skip
    return chance.choice(steps)
