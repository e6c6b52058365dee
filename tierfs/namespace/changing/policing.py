"""Calls under the policies: `cache` is read-only (EROFS), `scratch` files stay on this node."""

from __future__ import annotations

import errno
import os

from tierfs.model import Name
from tierfs.namespace.callers import Caller
from tierfs.namespace.changing.attributes import AttributeCalls, Changes
from tierfs.namespace.changing.names import Names
from tierfs.namespace.changing.projects import check_projects
from tierfs.namespace.changing.scratch import Scratch, is_scratch
from tierfs.namespace.content.files import WRITE_FLAGS, Files
from tierfs.namespace.core import Core
from tierfs.namespace.overlay.nodes import DirectoryState, Handle, LocalObject, Node
from tierfs.osio import RENAME_EXCHANGE
from tierfs.policies import PolicyKind


def refuse_at(core: Core, state: DirectoryState, name: Name) -> None:
    """OSError(EROFS) if `name` in `state` is not to be made, moved or taken away."""
    policy = core.policies.of((*core.tree.path(state.id), name))
    if policy.kind is PolicyKind.CACHE:
        raise _refusal(name, policy.pattern)


def refuse_change(core: Core, node: Node) -> None:
    """OSError(EROFS) if `node` is not to be changed."""
    policy = core.policy(node)
    if policy.kind is PolicyKind.CACHE:
        place = core.tree.path_of(node)
        raise _refusal(place[-1] if place else b"", policy.pattern)


def _refusal(name: Name, pattern: str) -> OSError:
    return OSError(errno.EROFS, f"policy cache of {pattern!r} is read-only", os.fsdecode(name))


class PolicedFiles(Files):
    """Open files, under the policies."""

    async def open(
        self, node: Node, flags: int, caller: Caller, *, internal: bool = False
    ) -> Handle:
        """See `Files.open`."""
        if flags & (WRITE_FLAGS | os.O_TRUNC):
            refuse_change(self._core, node)
        return await super().open(node, flags, caller, internal=internal)

    async def create(
        self, state: DirectoryState, name: Name, mode: int, caller: Caller, *,
        internal: bool = False,
    ) -> Handle:  # fmt: skip
        """See `Files.create`."""
        refuse_at(self._core, state, name)
        handle = await super().create(state, name, mode, caller, internal=internal)
        if is_scratch(handle.node):
            self._core.changed_here(state)
        return handle

    async def create_nameless(
        self, state: DirectoryState, mode: int, caller: Caller, *, internal: bool = False
    ) -> Handle:
        """See `Files.create_nameless`."""
        refuse_at(self._core, state, b"")
        return await super().create_nameless(state, mode, caller, internal=internal)

    async def flush(self, handle: Handle, thread: int = 0) -> None:
        """See `Files.flush`."""
        await super().flush(handle, thread)
        if handle.writable and is_scratch(handle.node):
            await self._core.journal.written()  # the row of its name


class PolicedNames(Names):
    """The calls that change directories, under the policies.

    Attributes:
        scratch: what becomes of scratch files.
    """

    scratch: Scratch

    async def mkdir(self, state: DirectoryState, name: Name, mode: int, caller: Caller) -> Node:
        """See `Names.mkdir`."""
        refuse_at(self._core, state, name)
        return await super().mkdir(state, name, mode, caller)

    async def symlink(
        self, state: DirectoryState, name: Name, target: Name, caller: Caller
    ) -> Node:
        """See `Names.symlink`."""
        refuse_at(self._core, state, name)
        return await super().symlink(state, name, target, caller)

    async def mknod(
        self, state: DirectoryState, name: Name, mode: int, rdev: int, caller: Caller
    ) -> Node:
        """See `Names.mknod`."""
        refuse_at(self._core, state, name)
        return await super().mknod(state, name, mode, rdev, caller)

    async def link(self, node: Node, state: DirectoryState, name: Name) -> None:
        """See `Names.link`."""
        refuse_at(self._core, state, name)
        refuse_change(self._core, node)
        if (source := self._core.tree.a_name(node)) is not None:
            self.scratch.check_end(node, state, name)
            old = self._core.tree.directories[source[0]]
            await check_projects(self._core, old, source[1], state)
        await super().link(node, state, name)

    async def unlink(self, state: DirectoryState, name: Name) -> None:
        """See `Names.unlink`."""
        refuse_at(self._core, state, name)
        await super().unlink(state, name)

    async def rmdir(self, state: DirectoryState, name: Name) -> None:
        """See `Names.rmdir`."""
        refuse_at(self._core, state, name)
        await super().rmdir(state, name)

    async def rename(
        self, old: DirectoryState, old_name: Name, new: DirectoryState, new_name: Name, flags: int
    ) -> None:
        """See `Names.rename`."""
        refuse_at(self._core, old, old_name)
        refuse_at(self._core, new, new_name)
        await check_projects(self._core, old, old_name, new)
        if flags == RENAME_EXCHANGE:
            await check_projects(self._core, new, new_name, old)
            await self._check_exchange(old, old_name, new, new_name)
        obj = _object_at(old, old_name)
        if obj is not None and obj.scratch and not self.scratch.is_at(new, new_name):
            await self._send(obj, old, old_name, new, new_name, flags)
            return
        await super().rename(old, old_name, new, new_name, flags)
        if self._core.scratch:
            await self.scratch.sweep()  # a directory may have taken some along

    async def _check_exchange(
        self, old: DirectoryState, old_name: Name, new: DirectoryState, new_name: Name
    ) -> None:
        for obj, (state, name) in (
            (_object_at(old, old_name), (new, new_name)),
            (_object_at(new, new_name), (old, old_name)),
        ):
            if obj is not None and obj.scratch:
                self.scratch.check_end(self._core.tree.by_object[obj.id], state, name)

    async def _send(
        self, obj: LocalObject, old: DirectoryState, old_name: Name, new: DirectoryState,
        new_name: Name, flags: int,
    ) -> None:  # fmt: skip
        """What was scratch takes a name of the shared tier: in one step, as any file."""
        node = self._core.tree.by_object[obj.id]
        await self.scratch.leave(node, obj)
        try:
            await super().rename(old, old_name, new, new_name, flags)
        except BaseException:
            self.scratch.stay(node, obj)
            raise
        await self.scratch.sent(node, obj)


def _object_at(state: DirectoryState, name: Name) -> LocalObject | None:
    entry = state.entries.get(name)
    return None if entry is None else entry.object


class PolicedAttributes(AttributeCalls):
    """Changes of attributes, under the policies."""

    async def setattr(
        self, node: Node, changes: Changes, handle: Handle | None, caller: Caller
    ) -> None:
        """See `AttributeCalls.setattr`."""
        refuse_change(self._core, node)
        await super().setattr(node, changes, handle, caller)

    async def setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        """See `AttributeCalls.setxattr`."""
        refuse_change(self._core, node)
        await super().setxattr(node, name, value)

    async def removexattr(self, node: Node, name: bytes) -> None:
        """See `AttributeCalls.removexattr`."""
        refuse_change(self._core, node)
        await super().removexattr(node, name)
