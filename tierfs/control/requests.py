"""Every request of the control socket, and the answer to each by its class in `results`.

The server makes a request of the message and hands it to the handler of its command. Paths are
absolute, as the mount shows them, in text (surrogate escapes for what is not UTF-8). Times are
seconds.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar

from tierfs.control.protocol import ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for."""

    command: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(Request):
    """Send what is pending under `paths` (none: in the whole mount) now. → FlushResult

    Holds that only wait for time end, stuck files are tried again. With `wait` the answer comes
    when everything that can be committed is, or after `timeout`; Progress events come before it.
    Without it the answer comes at once, with exit code 0, and lists what is still to be done.
    """

    command = "flush"
    paths: tuple[str, ...] = ()
    wait: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Umount(Request):
    """Flush everything like Flush(wait=True), then unmount and exit. → FlushResult

    With an exit code other than 0 the mount stays. `force` detaches at once and leaves the
    backlog to the next mount. For root and for whom mounted it.
    """

    command = "umount"
    timeout: float | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Request):
    """How the mount is. → StatusResult"""

    command = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class List(Request):
    """The entries of the directory `path`, or the one entry `path`. → ListResult"""

    command = "ls"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Locate(Request):
    """Where the content of `path` is and why it is not yet elsewhere. → LocateResult"""

    command = "locate"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept(Request):
    """Commit the suspect, torn or stuck file `path` as it is. → Decided

    For root and for the file's owner.
    """

    command = "accept"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(Request):
    """Forget the pending content of the suspect, torn or stuck file `path`. → Decided

    The name then shows what the shared tier has, or nothing. For root and for the file's owner.
    """

    command = "discard"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints(Request):
    """The checkpoints below the directory `path`. → CheckpointsResult"""

    command = "checkpoints"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Request):
    """Wait until nothing below `path` is open, pending, or about to be published.

    → SettledResult; exit code 2 after `timeout`, 3 when only what is stuck is left.
    """

    command = "settled"
    path: str
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Request):
    """Publish the checkpoint `path` as it is, and wait until that is done. → CommitResult

    Refused if it has not `expect` files. For who may write in it.
    """

    command = "commit"
    path: str
    expect: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge(Request):
    """Let removals that are held go, those under `paths` (none: all). → PurgeResult

    For root.
    """

    command = "purge"
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm(Request):
    """Make local copies of the committed files at and below `paths`. → KeptResult

    Refused if they do not fit. Progress events come before the answer; exit code 1 if a file
    failed. For who may read the files.
    """

    command = "warm"
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(Request):
    """As Warm, and what is there, and committed below later, is not evicted. → KeptResult

    With `remove` it may be evicted again.
    """

    command = "pin"
    paths: tuple[str, ...]
    remove: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict(Request):
    """Remove the local copies of the committed files at and below `paths`. → KeptResult

    `left` names those that stay: open, mapped, pinned or not committed. For who may read them.
    """

    command = "evict"
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Request):
    """What is known and thought of the checkpoint `path`. → ProfileResult"""

    command = "profile"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Request):
    """Which policy holds for `path`, whether there is a file or not. → PolicyResult"""

    command = "policy"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Set(Request):
    """Change settings of the running mount; each of `changes` is ``KEY=VALUE``. → SetResult

    All of them or, if one is refused, none. Without any: how they are. Changes are for root.
    """

    command = "set"
    changes: tuple[str, ...] = ()


_KINDS = (
    Flush, Umount, Status, List, Locate, Accept, Discard,
    Checkpoints, Settled, Commit, Purge, Profile, Policy, Set, Warm, Pin, Evict,
)  # fmt: skip

REQUESTS: MappingProxyType[str, type[Request]] = MappingProxyType(
    {kind.command: kind for kind in _KINDS}
)


def to_message(request: Request) -> dict[str, Any]:
    """`request` as it goes over the wire."""
    return {"command": request.command, **asdict(request)}


def from_message(message: dict[str, Any]) -> Request:
    """The request in `message`.

    Raises:
        ProtocolError: an unknown command, or fields that it does not have.
    """
    values = dict(message)
    kind = REQUESTS.get(str(values.pop("command", None)))
    if kind is None:
        raise ProtocolError(f"control socket: unknown command {message.get('command')!r}")
    known = {item.name: item for item in fields(kind)}
    if unknown := values.keys() - known.keys():
        raise ProtocolError(f"control socket: {kind.command}: unknown field {min(unknown)!r}")
    try:
        given = {name: _typed(str(known[name].type), v) for name, v in values.items()}
        for path in (given.get("path"), *given.get("paths", ())):
            _check_path(path)
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"control socket: {kind.command}: {error}") from None


def _check_path(path: str | None) -> None:
    """Refuse what two readers could take for two files.

    Whether the caller may see `path` is asked of the kernel, which follows symbolic links before
    it goes up at a ``..``; the answer then goes by the names alone.
    """
    if path is None:
        return
    os.fsencode(path)  # UnicodeEncodeError is a ValueError: text that stands for no bytes
    if not path.startswith("/") or os.path.normpath(path) != path:
        raise ValueError(f"not an absolute path without '.', '..' and needless slashes: {path!r}")


def _typed(annotation: str, value: object) -> Any:
    """`value` from JSON, checked against the few types that requests use."""
    ok: bool
    match annotation:
        case "bool":
            ok = isinstance(value, bool)
        case "str":
            ok = _is_text(value)
        case "float | None":
            # a NaN is not at least 0
            ok = value is None or (
                isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            )
        case "int | None":
            ok = value is None or (isinstance(value, int) and not isinstance(value, bool))
        case _:
            ok = isinstance(value, list) and all(_is_text(item) for item in value)
            value = tuple(value) if isinstance(value, list) else value
    if not ok:
        raise ValueError(f"not a {annotation}: {value!r}")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value
