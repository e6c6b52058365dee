"""Who may read which names: the kernel's own answer, asked with the credentials of the caller.

Walking modes by hand would have to repeat what the kernel knows of ACLs, groups and capabilities.
So the question is put to the kernel as the caller: credentials on Linux belong to a thread
(credentials(7)); glibc's setuid family spreads a change to all of them by signals, the raw system
calls do not. A thread that lives for one question takes on the caller's groups and file system
ids and ends with them: nothing has to be put back, no other thread ever has them, and nothing is
forked. Leaving uid 0 takes the file system capabilities out of the thread's effective set by
itself (capabilities(7), "Effect of user ID changes").
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from tierfs.control.server import Peer

_SYSCALLS = {
    # setgroups, setfsuid, setfsgid: asm/unistd_64.h and asm-generic/unistd.h
    "x86_64": (116, 122, 123),
    "aarch64": (159, 151, 152),
}
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Reached:
    """A file or directory of the mount that a caller may read; `inode` is its number there."""

    path: str
    inode: int
    size: int
    is_directory: bool


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...


Item = TypeVar("Item", bound=_HasPath)
Answer = TypeVar("Answer")


async def only_visible(
    items: Iterable[Item], peer: Peer, limiter: trio.CapacityLimiter
) -> tuple[tuple[Item, ...], int]:
    """Of `items` those whose path the caller may learn, and how many others there are.

    A name may be learnt by whom its directory lets list it and reach it. The paths are looked up
    through the mount, so this is never called where the mount cannot answer; `limiter` bounds the
    threads.

    Raises:
        OSError: the credentials could not be taken on; nothing was shown.
    """
    everything = tuple(items)
    if peer.is_root or not everything:
        return everything, 0
    parents = {os.path.dirname(item.path) for item in everything}
    readable = await trio.to_thread.run_sync(
        _listable, parents, peer, limiter=limiter, abandon_on_cancel=True
    )
    shown = tuple(item for item in everything if os.path.dirname(item.path) in readable)
    return shown, len(everything) - len(shown)


async def may_list(directory: str, peer: Peer, limiter: trio.CapacityLimiter) -> bool:
    """Whether the caller may learn the names in `directory` (see :func:`only_visible`)."""
    if peer.is_root:
        return True
    found = await trio.to_thread.run_sync(
        _listable, {directory}, peer, limiter=limiter, abandon_on_cancel=True
    )
    return directory in found


async def may_reach(path: str, peer: Peer, limiter: trio.CapacityLimiter) -> bool:
    """Whether the caller may learn if there is something at `path`, whose name it has already."""
    if peer.is_root:
        return True
    return await trio.to_thread.run_sync(
        _reachable, path, peer, limiter=limiter, abandon_on_cancel=True
    )


async def opened_to_change(path: str, peer: Peer, limiter: trio.CapacityLimiter) -> tuple[int, int]:
    """A descriptor (O_PATH) of the directory `path`, in which the caller may make and remove
    names, and its inode number. While it is open the number is nobody else's.

    Raises:
        OSError: ENOENT, ENOTDIR, EACCES, as the caller would get them.
    """
    return await trio.to_thread.run_sync(_open_to_change, path, peer, limiter=limiter)


async def below(
    paths: Iterable[str], peer: Peer, limiter: trio.CapacityLimiter
) -> tuple[list[Reached], list[str]]:
    """The files and directories at and below `paths`, and which the caller may not read.

    Symbolic links are not followed. Neither are directories that may not be listed: they are
    among those that may not be read.

    Raises:
        OSError: of one of `paths` itself, as the caller would get it.
    """
    return await trio.to_thread.run_sync(
        _below, tuple(paths), peer, limiter=limiter, abandon_on_cancel=True
    )


def _below(paths: tuple[str, ...], peer: Peer) -> tuple[list[Reached], list[str]]:
    reached: list[Reached] = []
    denied: list[str] = []

    def look(path: str, st: os.stat_result) -> None:
        is_directory = stat.S_ISDIR(st.st_mode)
        if not is_directory and not stat.S_ISREG(st.st_mode):
            return
        wanted = os.R_OK | (os.X_OK if is_directory else 0)
        if not _is_allowed(path, wanted):
            denied.append(path)
            return
        reached.append(Reached(path, st.st_ino, st.st_size, is_directory))
        if is_directory:
            for name in sorted(os.listdir(path)):
                inside = os.path.join(path, name)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    look(inside, os.lstat(inside))

    def ask() -> None:
        for path in paths:
            look(path, os.lstat(path))

    _as_peer(peer, ask)
    return reached, denied


def _is_allowed(path: str, wanted: int) -> bool:
    """As access(2), which says no as well of what is gone: that is FileNotFoundError."""
    for _ in range(2):  # a new one may have taken the name
        if os.access(path, wanted, effective_ids=True):
            return True
        os.lstat(path)
    return False


def _open_to_change(path: str, peer: Peer) -> tuple[int, int]:
    def ask() -> tuple[int, int]:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return fd, os.fstat(fd).st_ino
        except BaseException:
            os.close(fd)
            raise

    return _as_peer(peer, ask)


def _as_peer(peer: Peer, ask: Callable[[], Answer]) -> Answer:
    """What `ask` returns or raises in a thread that has the identity of `peer`."""
    answers: list[Answer] = []
    failures: list[OSError] = []

    def run() -> None:
        try:
            _become(peer)
            answers.append(ask())
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="tierfs-access", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]


def _listable(directories: set[str], peer: Peer) -> set[str]:
    """Which of `directories` the caller may list and enter."""

    def ask() -> set[str]:
        # With effective ids: faccessat2(2) then uses the file system ids as they are.
        return {d for d in directories if os.access(d, os.R_OK | os.X_OK, effective_ids=True)}

    return _as_peer(peer, ask)


def _reachable(path: str, peer: Peer) -> bool:
    """Whether the directories on the way to `path` let the caller through."""

    def ask() -> bool:
        try:
            os.lstat(path)
        except PermissionError:
            return False
        except OSError:
            pass  # not there, or its tier is ill: for the caller as for anybody
        return True

    return _as_peer(peer, ask)


def _become(peer: Peer) -> None:
    """Give this thread, for the rest of its life, the file system identity of `peer`."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"names are shown to root only on {platform.machine()}")
    setgroups, setfsuid, setfsgid = numbers
    groups = (ctypes.c_uint32 * len(peer.groups))(*peer.groups)
    if _libc.syscall(ctypes.c_long(setgroups), ctypes.c_size_t(len(peer.groups)), groups) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setgroups: {os.strerror(code)}")
    for number, identity in ((setfsgid, peer.gid), (setfsuid, peer.uid)):
        _libc.syscall(ctypes.c_long(number), ctypes.c_uint32(identity))
        # These two report no errors: an invalid id changes nothing and returns the one in force.
        if _libc.syscall(ctypes.c_long(number), ctypes.c_uint32(0xFFFFFFFF)) != identity:
            raise PermissionError(f"cannot act as user {peer.uid}, group {peer.gid}")
