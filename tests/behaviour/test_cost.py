"""What a small file costs in calls that the application waits for: each is a thread woken."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.behaviour.direct import Direct
from tierfs.kernel.leading import until_it_waits
from tierfs.model import Kind
from tierfs.namespace.callers import Caller
from tierfs.namespace.finding import inheritance
from tierfs.threads import Pool, patience

T = TypeVar("T")
ME = Caller(0, 0, 0, 0o022)
BEHIND = ("ObjectStore.usage", "Closing._close", "Chores._sweep_orphans.<locals>.<lambda>")
"""What the chores do by themselves."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called in threads."""
    found: list[str] = []
    run = Pool.run
    monkeypatch.setattr(inheritance, "VALID_SECONDS", 60.0)

    async def counted(self: Pool, call: Callable[..., Any], *args: object, **more: Any) -> Any:
        if call.__qualname__ not in BEHIND:
            found.append(call.__qualname__)
        return await run(self, call, *args, **more)

    monkeypatch.setattr(Pool, "run", counted)
    return found


def test_create_takes_one_call_and_close_none(
    make_direct: Callable[..., Direct], calls: list[str]
) -> None:
    direct = make_direct(held=True)
    files, top = direct.fs.files, direct.fs.tree.directory(1)
    first = direct.run(files.create, top, b"first", 0o644, ME)
    direct.run(files.flush, first)
    calls.clear()
    handle = direct.run(files.create, top, b"f", 0o644, ME)
    assert handle.born is not None
    assert handle.born.kind is Kind.FILE
    assert calls == ["Files._make"]
    direct.run(files.flush, handle)
    assert calls == ["Files._make"]
    for each in (first, handle):
        direct.run(files.release, each)


async def in_one_step(call: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    """What a request does, in the step that reads it: it never goes through the loop."""

    def waits() -> None:
        raise AssertionError(f"{call.__qualname__} let others run")

    patience.begin(30.0)
    try:
        return await until_it_waits(call(*arguments), waits)
    finally:
        patience.end()


def test_a_small_file_never_waits_for_the_loop(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct(held=True)
    fs, top = direct.fs, direct.fs.tree.directory(1)
    assert direct.run(in_one_step, fs.lookup.find, top, b"f") is None
    handle = direct.run(in_one_step, fs.files.create, top, b"f", 0o644, ME)
    direct.run(in_one_step, fs.files.flush, handle)
    direct.run(in_one_step, fs.files.release, handle)
    direct.settle()
    handle = direct.run(in_one_step, fs.files.open, handle.node, 0, ME)
    direct.run(in_one_step, fs.files.release, handle)
