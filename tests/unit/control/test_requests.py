"""The wire form of requests, and the one exit code of a flush."""

from __future__ import annotations

import itertools
import json

import pytest

from tierfs.control import requests
from tierfs.control.protocol import ProtocolError, decode, encode
from tierfs.control.results import flush_exit_code

EVERY = [
    requests.Flush(paths=("/m/a", "/m/\udcff"), wait=True, timeout=1.5),
    requests.Flush(),
    requests.Umount(timeout=3, force=True),
    requests.Status(),
    requests.List(path="/m"),
    requests.Locate(path="/m/a"),
    requests.Accept(path="/m/a"),
    requests.Discard(path="/m/ä"),
    requests.Checkpoints(path="/m"),
    requests.Settled(path="/m", timeout=2),
    requests.Commit(path="/m/checkpoint-1", expect=3),
    requests.Commit(path="/m/checkpoint-1"),
    requests.Purge(paths=("/m/a",)),
    requests.Warm(paths=("/m/a",)),
    requests.Pin(paths=("/m/a", "/m/b"), remove=True),
    requests.Evict(paths=("/m/a",)),
    requests.Profile(path="/m/checkpoint-1"),
    requests.Policy(path="/m/a"),
    requests.Set(changes=("bwlimit=1M",)),
]


@pytest.mark.parametrize("request_", EVERY, ids=repr)
def test_round_trip(request_: requests.Request) -> None:
    line = encode(requests.to_message(request_))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert requests.from_message(decode(line)) == request_


def test_every_command_is_tried_above() -> None:
    assert {type(request) for request in EVERY} == set(requests.REQUESTS.values())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({}, "unknown command None"),
        ({"command": "explode"}, "unknown command 'explode'"),
        ({"command": ["ls"]}, "unknown command"),
        ({"command": "ls"}, "path"),
        ({"command": "ls", "path": 3}, "not a str: 3"),
        ({"command": "ls", "path": "/a\0b"}, "not a str"),
        ({"command": "ls", "path": "a"}, "not an absolute path"),
        ({"command": "ls", "path": "/m/link/../private"}, "not an absolute path without"),
        ({"command": "ls", "path": "/m/link/.."}, "not an absolute path without"),
        ({"command": "ls", "path": "/m//a"}, "not an absolute path without"),
        ({"command": "ls", "path": "/m/\ud800"}, "surrogates not allowed"),
        ({"command": "flush", "paths": ["/m", "/m/../a"]}, "not an absolute path without"),
        ({"command": "ls", "path": "/a", "x": 1}, "unknown field 'x'"),
        ({"command": "flush", "paths": "/a"}, "not a tuple"),
        ({"command": "flush", "paths": [1]}, "not a tuple"),
        ({"command": "flush", "wait": 1}, "not a bool"),
        ({"command": "flush", "timeout": True}, "not a float | None"),
        ({"command": "flush", "timeout": -1}, "not a float | None"),
        ({"command": "flush", "timeout": float("nan")}, "not a float | None"),
        ({"command": "commit", "path": "/a", "expect": True}, "not a int | None"),
        ({"command": "commit", "path": "/a", "expect": 1.5}, "not a int | None"),
    ],
)
def test_refused(message: dict[str, object], said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        requests.from_message(json.loads(json.dumps(message)))
    assert said in str(caught.value)


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b"\xff\n", b"3\n", b"[" * 100_000])
def test_not_a_message(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


def test_exit_code_precedence() -> None:
    for timed_out, stuck, held, still_open in itertools.product((False, True), repeat=4):
        expected = 2 if timed_out else 3 if stuck else 5 if held else 4 if still_open else 0
        code = flush_exit_code(timed_out=timed_out, stuck=stuck, held=held, still_open=still_open)
        assert code == expected
