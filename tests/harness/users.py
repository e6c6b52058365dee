"""Running a piece of a test as somebody who is not root."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

NOBODY = 65534
ALICE = 1000
BOB = 1001


def as_user(
    action: Callable[[], T], uid: int, gid: int | None = None, groups: Sequence[int] = ()
) -> T:
    """Run `action` in a forked child with these credentials; its exception is raised here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _report(action, writer, uid, uid if gid is None else gid, groups)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    ok, value = pickle.loads(answer)
    if ok:
        return value  # type: ignore[no-any-return]
    raise value


def _report(
    action: Callable[[], object], writer: int, uid: int, gid: int, groups: Sequence[int]
) -> None:
    try:
        os.setgroups(list(groups))
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        answer = pickle.dumps((True, action()))
    except BaseException as error:
        try:
            answer = pickle.dumps((False, error))
        except Exception:
            answer = pickle.dumps((False, RuntimeError(repr(error))))
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)
