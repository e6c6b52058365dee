"""Closed files that may still be written to; whether they are is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from tierfs.model import Kind, ObjectId
from tierfs.namespace.content.ending import Ending
from tierfs.namespace.content.settling import MAPPED_SECONDS, Settling
from tierfs.namespace.overlay.nodes import Content, LocalObject, Node


async def test_what_is_closed_again_is_mapped_only_long_after_that(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was opened and closed once more, before anybody looked."""
    settling, seen = Settling(), list[bool]()
    node = Node(1, Kind.FILE)
    obj = LocalObject(ObjectId(1), Kind.FILE, Content.DATA)

    async def settle(node: Node, obj: LocalObject, *, mapped: bool) -> bool:
        seen.append(mapped)
        return False

    files: Any = SimpleNamespace(ending=SimpleNamespace(settle=settle))
    settling.add(node, obj)
    await trio.sleep(2 * MAPPED_SECONDS)
    settling.add(node, obj)
    await settling.look(files)
    await trio.sleep(2 * MAPPED_SECONDS)
    await settling.look(files)
    assert seen == [False, True]


async def test_what_is_closed_again_while_it_is_found_to_be_over_is_looked_at_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settling, seen = Settling(), list[bool]()
    node = Node(1, Kind.FILE)
    obj = LocalObject(ObjectId(1), Kind.FILE, Content.DATA)

    async def settle(node: Node, obj: LocalObject, *, mapped: bool) -> bool:
        seen.append(mapped)
        if len(seen) == 1:
            settling.add(node, obj)  # opened and closed, in the last await of the first
        return True

    files: Any = SimpleNamespace(ending=SimpleNamespace(settle=settle))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settling.run, files)
        settling.add(node, obj)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert len(seen) == 2


async def test_each_last_close_is_told_while_it_is_not_over() -> None:
    told = list[LocalObject]()
    node = Node(1, Kind.FILE)
    obj = LocalObject(ObjectId(1), Kind.FILE, Content.DATA, live=True)

    async def end_writing(obj: LocalObject) -> None:
        pass

    data: Any = SimpleNamespace(end_writing=end_writing)
    nothing: Any = None
    ending = Ending(nothing, nothing, data, nothing, lambda node, obj: told.append(obj))
    ending.settled = lambda obj: False  # type: ignore[method-assign]
    await ending.writers_left(node, obj)
    await ending.writers_left(node, obj)
    assert told == [obj, obj]
    assert obj.users == 1
