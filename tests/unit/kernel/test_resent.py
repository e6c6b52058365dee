"""Which requests are answered, over workers that die one soon after the other."""

from __future__ import annotations

from tierfs.kernel.resent import BATCH, RESENT, Requests
from tierfs.kernel.wire import REQUEST_HEADER, Opcode, Request


def asks(requests: Requests, unique: int, opcode: Opcode = Opcode.UNLINK) -> bytes | None:
    body = b"name\0"
    message = REQUEST_HEADER.pack(REQUEST_HEADER.size + len(body), opcode, unique, 1, 0, 0, 0, 0)
    return requests.came(Request.of(memoryview(message)), memoryview(message + body))


def test_what_an_earlier_worker_carried_out_is_kept_until_it_is_answered() -> None:
    forgotten: list[int] = []
    done = range(2, 2 * BATCH + 4, 2)
    requests = Requests(done, forgotten.extend)
    assert asks(requests, done[-1] | RESENT) is not None
    assert asks(requests, done[0] | RESENT) is not None
    requests.answered(done[0] | RESENT)
    assert done[-1] not in forgotten
    assert asks(requests, 2 * BATCH + 10) is None
    requests.answered(2 * BATCH + 10)
    assert set(forgotten) == {*done[:-1], 2 * BATCH + 10}, "new ones tell that no more comes again"
    assert asks(requests, done[-1] | RESENT) is not None
    requests.answered(done[-1] | RESENT)


def test_what_is_asked_again_and_was_not_carried_out_is_carried_out() -> None:
    requests = Requests((4,), lambda _: None)
    assert asks(requests, 6 | RESENT) is None
    assert requests.take(Opcode.UNLINK, 1, b"name") is not None
