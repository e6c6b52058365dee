"""Answers in the place of a shared tier that gives none: what was seen of it last."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from tierfs.local import ObjectStore
from tierfs.model import Attributes, CleanRecord, Name, ObjectId, Signature
from tierfs.namespace.core import Core
from tierfs.namespace.outage.announced import Bare, kinds
from tierfs.namespace.outage.asking import asker
from tierfs.namespace.overlay.nodes import Content, DirectoryState, Node
from tierfs.osio.intent import is_making
from tierfs.osio.processes import age_seconds, process_of
from tierfs.shared import Entry

log = logging.getLogger(__name__)

Adopt = Callable[[DirectoryState, Name, Entry], Node]
Found = tuple[Node, os.stat_result | None]


class Instead:
    """`adopt` makes the node of an entry of the shared tier (see `Lookup`)."""

    def __init__(self, core: Core, adopt: Adopt) -> None:
        self._core = core
        self._tree = core.tree
        self._adopt = adopt
        self._logged: set[int] = set()

    def node(self, state: DirectoryState, name: Name) -> Found | None:
        """What `name` leads to, None if that is not known.

        FileNotFoundError only for what was removed here, and to who makes the name.
        """
        group = state.unsealed.get(name)
        if group is not None and (node := self._tree.by_object.get(group)) is not None:
            return node, None
        known = self._core.announced.get(state.id)
        if known is None:
            return None
        if name in known.names:
            entry = known.entry(name)
            return None if entry is None else (self._adopt(state, name, entry), entry.st)
        makes = name not in known.staged and is_making(asker() or 0, state.name, name)
        if makes and name not in known.removed:
            known.assumed.add(name)
        if makes or name in known.removed:
            raise FileNotFoundError(2, os.strerror(2), os.fsdecode(name))
        return None

    def is_known(self, state: DirectoryState, name: Name) -> bool:
        """Whether `node` has an answer."""
        try:
            return self.node(state, name) is not None
        except FileNotFoundError:
            return True

    def attributes(self, node: Node) -> Attributes | None:
        """What stat(2) said of `node` last."""
        if node.directory is not None:
            known = self._core.announced.get(node.directory)
            last = self._tree.directories[node.directory].known
            return last or (None if known is None else Attributes.of(known.here))
        return self._core.announced.attributes(node.shared)

    def names(self, state: DirectoryState) -> dict[Name, Bare] | None:
        """What stands in a directory: for us, and for applications that ran before the outage.

        One that was started since would take it for the present state, and resume from what is no
        longer the newest checkpoint.
        """
        known, since = self._core.announced.get(state.id), self._core.calls.silence.since
        if known is None:
            return None
        thread = asker()
        if thread is not None and since is not None:
            age = age_seconds(process_of(thread))
            if age is None or age < time.monotonic() - since:
                return None
        return kinds(known.names)

    async def xattrs(self, node: Node) -> dict[bytes, bytes] | None:
        """The xattrs of `node`, from its local copy if it is a file."""
        core = self._core
        if node.directory is not None:
            known = core.announced.get(node.directory)
            return None if known is None else known.xattrs
        clean = await self._clean(node)
        if clean is None:
            return None
        return await core.local(_read_xattrs, core.store, clean.object)

    async def copy(self, node: Node) -> CleanRecord | None:
        """The local copy of `node` that may be read unasked, if there is one."""
        if not self._core.settings.outage_reads:
            return None
        clean = await self._clean(node)
        if clean is not None and clean.signature.inode not in self._logged:
            self._logged.add(clean.signature.inode)
            names = [os.fsdecode(name) for _, name in node.names]
            log.info("%s: read from the local copy: the shared tier does not answer", *names[:1])
        return clean

    async def _clean(self, node: Node) -> CleanRecord | None:
        core, place = self._core, node.shared
        if place is None or (node.object is not None and node.object.content is Content.DATA):
            return None  # whatever else is pending on it, its content is what was committed
        clean = await core.journal.clean_copy(place.inode)
        last: Signature | None = core.announced.signature(place)
        if clean is None or last not in (None, clean.signature):
            return None
        return clean


def _read_xattrs(store: ObjectStore, object_id: ObjectId) -> dict[bytes, bytes]:
    return {name: store.get_xattr(object_id, name) for name in store.list_xattrs(object_id)}
