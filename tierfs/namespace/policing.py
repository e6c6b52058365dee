"""What policies forbid: changes below a path of policy `cache`, which is read-only (EROFS)."""

from __future__ import annotations

import errno
import os

from tierfs.model import Name
from tierfs.namespace.attributes import AttributeCalls, Changes
from tierfs.namespace.callers import Caller
from tierfs.namespace.core import Core
from tierfs.namespace.files import WRITE_FLAGS, Files
from tierfs.namespace.names import Names
from tierfs.namespace.nodes import DirectoryState, Handle, Node
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
        return await super().create(state, name, mode, caller, internal=internal)


class PolicedNames(Names):
    """The calls that change directories, under the policies."""

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
        await super().rename(old, old_name, new, new_name, flags)


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
