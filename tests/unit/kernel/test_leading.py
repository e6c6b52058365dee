"""A request is carried out in the step that reads it, until it has to wait."""

from __future__ import annotations

import pytest
import trio

from tierfs.kernel.leading import until_it_waits


async def test_what_does_not_wait_is_over_at_once() -> None:
    waited: list[int] = []

    async def call() -> int:
        return 3

    async def fails() -> int:
        raise KeyError

    assert await until_it_waits(call(), lambda: waited.append(1)) == 3
    with pytest.raises(KeyError):
        await until_it_waits(fails(), lambda: waited.append(1))
    assert waited == []


async def test_it_is_told_once_that_others_run() -> None:
    waited: list[str] = []

    async def call(event: trio.Event) -> int:
        waited.append("begun")
        await event.wait()
        await trio.lowlevel.checkpoint()
        return 3

    event = trio.Event()

    def waits() -> None:
        waited.append("waits")
        event.set()

    assert await until_it_waits(call(event), waits) == 3
    assert waited == ["begun", "waits"]


async def test_it_can_be_cancelled_and_fail_after_it_has_waited() -> None:
    ended: list[str] = []

    async def call() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("undone")

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError

    with trio.CancelScope() as scope:
        await until_it_waits(call(), scope.cancel)
    assert scope.cancelled_caught
    assert ended == ["undone"]
    with pytest.raises(KeyError):
        await until_it_waits(fails(), lambda: None)
