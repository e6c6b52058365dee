"""A request is carried out in the step that reads it, until it has to wait."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def until_it_waits(
    call: Coroutine[Any, Any, T], waits: Callable[[], object]
) -> Generator[Any, Any, T]:
    """`await call`; `waits` is called when it lets others run for the first time, if it does."""
    try:
        asked = call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    waits()
    while True:
        try:
            try:
                answer = yield asked
            except BaseException as error:
                asked = call.throw(error)
            else:
                asked = call.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
