"""What a failure means for the op that met it: try again, or wait for somebody to act. Pure."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from tierfs.errors import DirectoryGone, JournalError, VerifyMismatch, XattrsFull
from tierfs.model import Op

ADVICE = {
    errno.EACCES: "permission denied by the shared tier: give root access to the directory",
    errno.EPERM: "forbidden by the shared tier: look for immutable files and missing features "
    "(ACLs, xattrs, ownership)",
    errno.ENAMETOOLONG: "the shared tier does not take names this long: rename it in the mount",
    errno.EINVAL: "the shared tier refuses the name or an attribute: rename it in the mount",
    errno.EFBIG: "the shared tier does not take files this large: split it or remove it",
    errno.EILSEQ: "the shared tier does not take these bytes in a name: rename it in the mount",
    errno.EEXIST: "something else was put there outside this mount: move it away or remove it",
    errno.EISDIR: "a directory was put there outside this mount: move it away or remove it",
    errno.ENOTDIR: "a file was put there outside this mount: move it away or remove it",
    errno.ENOTEMPTY: "the directory that it replaces was filled outside this mount: empty it",
    errno.ELOOP: "a symlink was put in its path outside this mount: remove the symlink",
    errno.EMLINK: "the shared tier does not take more links or directories there",
    errno.EXDEV: "the shared tier has another file system mounted below it: unmount that",
    errno.EOPNOTSUPP: "the shared tier cannot do this: use a file system with xattrs and ACLs",
}
"""Errors that the same call will meet again until somebody changes something, and what to do."""

PASSING = {
    errno.EAGAIN: "another node writes the checkpoint, or did until moments ago: it is waited for",
    errno.ETXTBSY: "a process of this node still has it open or mapped for writing",
    errno.ENOSPC: "the shared tier is full: free space there",
    errno.EDQUOT: "the quota on the shared tier is used up: raise it or free space",
    errno.ENODEV: "the shared tier is not mounted under its path: mount it there",
    errno.EROFS: "the shared tier is read-only: remount it writable",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an op that failed is stuck, and the line that tells the user about it."""

    stuck: bool
    text: str
    reason: str


def judge(error: BaseException, path: str) -> Verdict:
    """The verdict on `error`, met by the op on `path` at the shared tier.

    What is not known to last is tried again: an attempt too many costs little, one too few leaves
    a checkpoint on one node.
    """
    if isinstance(error, VerifyMismatch):
        return Verdict(
            False,
            f"{path}: what the shared tier returned differs from what was sent; it is sent again",
            "verify",
        )
    if isinstance(error, DirectoryGone):
        return Verdict(False, f"{path}: its directory was moved or removed meanwhile", "directory")
    if isinstance(error, JournalError):
        return Verdict(False, f"{path}: {error}", "journal")
    if isinstance(error, XattrsFull):
        return Verdict(
            True,
            f"{path}: the shared tier does not take as many xattrs on one file: "
            "remove some in the mount",
            "xattrs",
        )
    if not isinstance(error, OSError) or error.errno is None:
        return Verdict(False, f"{path}: unexpected error: {error!r}", type(error).__name__)
    name = errno.errorcode.get(error.errno, str(error.errno))
    advice = ADVICE.get(error.errno)
    said = advice or PASSING.get(error.errno) or os.strerror(error.errno)
    return Verdict(advice is not None, f"{path}: {said} [{name}{_step(error)}]", name)


def gone_for_good(path: str) -> Verdict:
    """The verdict when the directory of an op does not exist any more on the shared tier."""
    return Verdict(
        True,
        f"{path}: its directory was removed or replaced outside this mount; "
        "copy the file elsewhere in the mount, then run tierfs discard",
        "directory",
    )


def unreadable(error: OSError, path: str) -> Verdict:
    """The verdict when the local object of an op cannot be read: `error` is of the local tier."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return Verdict(
        True,
        f"{path}: its local content cannot be read: run tierfs discard, then write it again "
        f"[{name}]",
        f"local-{name}",
    )


def not_synced(error: OSError, path: str) -> Verdict:
    """The verdict when the fsync of a local object failed: its pages may be lost unseen."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return Verdict(
        True,
        f"{path}: the local tier failed to store it: check the file, then run tierfs accept "
        f"or tierfs discard [{name}]",
        f"local-{name}",
    )


def damaged(error: OSError, path: str) -> Verdict:
    """The verdict when a file that was written on the shared tier is not what was written."""
    return Verdict(
        True,
        f"{path}: {error.strerror}: check the file, then run tierfs accept or tierfs discard",
        "verify",
    )


def path_of(op: Op) -> str:
    """The path of `op` from the root of the mount, for people."""
    return os.fsdecode(b"/".join(op.path)) or "/"


def pause_seconds(attempts: int, first: float, last: float, jitter: float) -> float:
    """Pause before attempt `attempts` + 1; `jitter` from 0 to 1 takes up to half of it away."""
    whole = min(last, first * 2.0 ** min(attempts - 1, 32))
    return whole * (1 - jitter / 2)


def _step(error: OSError) -> str:
    notes = getattr(error, "__notes__", ())
    return f" {notes[0]}" if notes else ""
