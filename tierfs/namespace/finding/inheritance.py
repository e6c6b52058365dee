"""What something new takes from its directory: group (setgid), mode under the umask, default ACL.

The kernel leaves the umask to us because FUSE_POSIX_ACL is on (pyfuse3 `enable_acl`).
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass

from tierfs.local import ObjectStore
from tierfs.model import SPECIAL, Kind, Name, ObjectId
from tierfs.namespace.callers import Caller
from tierfs.namespace.core import Core
from tierfs.namespace.finding.lookup import Lookup
from tierfs.namespace.overlay.nodes import Content, DirectoryState, LocalObject

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
VALID_SECONDS = 0.5
"""How long a shared directory's answer is believed (G10: other nodes' changes within 1 s)."""

# linux/posix_acl_xattr.h: u32 version, then (u16 tag, u16 permissions, u32 id) each
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_USER_OBJ, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x04, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Birth:
    """Owner, mode and ACLs of something new."""

    uid: int
    gid: int
    mode: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def xattr_names(self) -> frozenset[bytes]:
        """The names of the xattrs it is born with."""
        return frozenset(name for name, _ in self.xattrs)


@dataclass(frozen=True, slots=True)
class _Legacy:
    until: float
    setgid: bool
    gid: int
    default_acl: bytes | None


class Inheritance:
    """Remembers for a moment what directories pass on."""

    def __init__(self, core: Core, lookup: Lookup) -> None:
        self._core = core
        self._lookup = lookup
        self._known: dict[ObjectId, _Legacy] = {}

    def changed(self, directory: ObjectId) -> None:
        """Owner, mode or ACL of `directory` were changed here."""
        self._known.pop(directory, None)

    async def of(self, state: DirectoryState, kind: Kind, mode: int, caller: Caller) -> Birth:
        """What a new `kind` in `state`, asked for with `mode`, is to be."""
        legacy = self._known.get(state.id)
        if legacy is None or legacy.until < time.monotonic():
            legacy = await self._ask(state)
            if len(self._known) > 4096:
                self._known.clear()
            self._known[state.id] = legacy
        gid = legacy.gid if legacy.setgid else caller.gid
        if kind is Kind.SYMLINK:
            return Birth(caller.uid, gid, 0o777)
        if legacy.setgid and kind is Kind.DIRECTORY:
            mode |= 0o2000
        if legacy.default_acl is None:
            return Birth(caller.uid, gid, mode & ~caller.umask)
        return _with_default_acl(legacy.default_acl, kind, mode, caller.uid, gid)

    async def _ask(self, state: DirectoryState) -> _Legacy:
        core = self._core
        node = core.tree.by_object[state.id]
        attributes = await self._lookup.attributes(node)
        obj = node.object
        if obj is not None and obj.content is not Content.NONE:
            acl = None
            with core.holding(obj):
                if DEFAULT in await core.of_object(obj.id, core.store.list_xattrs, obj.id):
                    acl = await core.of_object(obj.id, core.store.get_xattr, obj.id, DEFAULT)
        else:
            xattrs = await self._lookup.xattrs(node)
            acl = xattrs.get(DEFAULT)
        until = time.monotonic() + VALID_SECONDS
        return _Legacy(until, bool(attributes.mode & 0o2000), attributes.gid, acl)


def _with_default_acl(default: bytes, kind: Kind, mode: int, uid: int, gid: int) -> Birth:
    """The access ACL that the kernel's posix_acl_create would make of a default ACL; acl(5)."""
    entries = [list(item) for item in _ENTRY.iter_unpack(default[_HEADER.size :])]
    tags = {entry[0]: entry for entry in entries}
    tags[_USER_OBJ][1] &= mode >> 6 & 7
    tags[_OTHER][1] &= mode & 7
    middle = tags.get(_MASK, tags[_GROUP_OBJ])
    middle[1] &= mode >> 3 & 7
    bits = tags[_USER_OBJ][1] << 6 | middle[1] << 3 | tags[_OTHER][1]
    access = default[: _HEADER.size] + b"".join(_ENTRY.pack(*entry) for entry in entries)
    xattrs = []
    if len(entries) > 3:  # more than owner, group and other: the mode alone does not say it
        xattrs.append((ACCESS, access))
    if kind is Kind.DIRECTORY:
        xattrs.append((DEFAULT, default))
    return Birth(uid, gid, mode & 0o7000 | bits, tuple(xattrs))


def make_newborn(
    store: ObjectStore,
    obj: LocalObject,
    birth: Birth,
    parent: ObjectId,
    name: Name,
    target: bytes = b"",
    rdev: int = 0,
) -> int:
    """Makes the local object of something new; of a file returns its descriptor. Blocking.

    Nobody will sync what stays here: that is done at once.
    """
    fd = store.create(
        obj.id, obj.kind, mode=birth.mode, uid=birth.uid, gid=birth.gid, parent=parent,
        name=name, target=target, rdev=rdev,
    )  # fmt: skip
    try:
        for xattr, value in birth.xattrs:
            store.set_xattr(obj.id, xattr, value)
        if obj.kind in SPECIAL:
            store.sync(obj.id)
    except OSError:
        if fd >= 0:
            os.close(fd)
        store.remove(obj.id)
        raise
    return fd
