"""What a listing tells: by names alone, again after a moment, and before a directory goes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from tests.behaviour.direct import Direct
from tierfs.kernel import wire
from tierfs.kernel.directories import Directories
from tierfs.kernel.wire import Opcode, Request
from tierfs.namespace.finding.scans import Scans
from tierfs.namespace.overlay.tree import ROOT_INO
from tierfs.threads import Pool

FIND, CALLS = 4711, ("listing", "lookup_staged", "lookup", "stat_many")
_ENTRY = struct.Struct("=128xQQII")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which calls the shared tier was asked for names."""
    found: list[str] = []
    begin = Pool.begin

    def counted(self: Pool, call: Callable[..., object], *args: object, **more: object) -> object:
        if call.__name__ in CALLS:
            found.append(call.__name__)
        return begin(self, call, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "begin", counted)
    return found


class Reader:
    """Reads directories as the kernel does for one thread."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        self._directories = Directories(direct.fs)

    def _request(self, opcode: Opcode, nodeid: int, body: bytes) -> tuple[Request, bytes]:
        length = wire.REQUEST_HEADER.size + len(body)
        head = wire.REQUEST_HEADER.pack(length, opcode, 1, nodeid, 0, 0, FIND, 0)
        return Request.of(memoryview(head)), head + body

    def open(self, nodeid: int) -> int:
        """OPENDIR."""
        request, _ = self._request(Opcode.OPENDIR, nodeid, b"")
        reply = self._direct.run_sync(lambda: self._directories.open(request))
        return int(struct.unpack_from("=Q", reply, wire.REPLY_HEADER.size)[0])

    def read(self, nodeid: int, number: int, at: int, room: int) -> list[tuple[int, bytes, int]]:
        """READDIRPLUS: position of the next one, name and number of each entry."""
        asked = self._request(
            Opcode.READDIRPLUS, nodeid, struct.pack("=QQIIQII", number, at, room, 0, 0, 0, 0)
        )
        reply = self._direct.run(self._directories.read, *asked)
        assert len(reply) - wire.REPLY_HEADER.size <= room
        return list(_entries(reply[wire.REPLY_HEADER.size :]))

    def names_only(self) -> None:
        """It never looks at what it lists."""
        self._directories.readers.opens(FIND, 8)
        self._directories.readers.probes(FIND, 8, b"one")
        self._directories.readers.opens(FIND, 9)
        assert not self._directories.readers.attributed(FIND)


def _entries(body: bytes) -> Iterator[tuple[int, bytes, int]]:
    at = 0
    while at < len(body):
        ino, position, length, _ = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        yield position, body[at : at + length], ino
        at += length + 7 & ~7


def test_positions_are_the_same_whatever_room_there_is(make_direct: Callable[..., Direct]) -> None:
    direct = make_direct(held=True)
    committed = {f"file-{number}" * (1 + number % 3) for number in range(300)}
    for name in committed:
        (direct.shared / name).touch()
    (direct.shared / "below").mkdir()
    direct.write_file("pending", b"")
    direct.unlink("file-6")
    expected = {*committed, "below", "pending"} - {"file-6"}
    reader = Reader(direct)
    reader.names_only()
    number = reader.open(1)
    whole = reader.read(1, number, 0, 1 << 20)
    assert [position for position, _, _ in whole] == list(range(1, len(whole) + 1))
    assert [name for _, name, _ in whole[:2]] == [b".", b".."]
    assert {name.decode() for _, name, _ in whole[2:]} == expected
    inodes = {name: direct.inode(name.decode()) for _, name, _ in whole[2:]}
    assert {name: ino for _, name, ino in whole[2:]} == inodes
    for room in (176, 1000, 4096):
        at, told = len(whole) // 2, []
        while part := reader.read(1, number, at, room):
            told += part
            at = part[-1][0]
        assert told == whole[len(whole) // 2 :]


def test_what_was_done_since_is_in_a_listing_of_a_moment_ago(
    make_direct: Callable[..., Direct], asked: list[str]
) -> None:
    direct = make_direct()
    for name in ("old", "gone", "moved"):
        (direct.shared / name).touch()
    assert sorted(direct.listdir()) == ["gone", "moved", "old"]
    direct.fs.listings.scans.recent(direct.fs.tree.directory(1)).until += 60  # type: ignore[union-attr]
    asked.clear()
    direct.write_file("new", b"1")
    direct.unlink("gone")
    direct.rename("moved", "there")
    assert sorted(direct.listdir()) == ["new", "old", "there"]
    direct.settle()
    assert sorted(direct.listdir()) == ["new", "old", "there"]
    direct.unlink("new")
    direct.settle()
    assert sorted(direct.listdir()) == ["old", "there"]
    assert "listing" not in asked


@pytest.mark.parametrize("changed", [False, True])
def test_who_reads_a_directory_twice_has_its_files_looked_at_once_unless_one_was_changed(
    make_direct: Callable[..., Direct], asked: list[str], changed: bool
) -> None:
    direct = make_direct()
    for name in ("a", "b"):
        (direct.shared / name).touch()

    def modes() -> dict[bytes, int]:
        listing = direct.run_sync(lambda: direct.fs.listings.open(direct.fs.tree.directory(1)))
        found = direct.run(direct.fs.listings.batch, listing, 0)
        told = {name: listing.ahead[position].attributes for position, name in found}
        return {name: each.mode for name, each in told.items() if each is not None}

    first = modes()
    assert asked.count("stat_many") == 1
    if changed:  # and nothing is left of it but what the shared tier has
        direct.chmod("a", 0o600)
        direct.settle()
        first[b"a"] = 0o600
    assert modes() == first
    assert asked.count("stat_many") == 1 + changed


def test_a_directory_that_was_just_read_is_removed_without_a_question(
    make_direct: Callable[..., Direct], asked: list[str]
) -> None:
    direct = make_direct(held=True)
    (direct.shared / "d").mkdir()
    (direct.shared / "d/f").touch()
    top = direct.fs.tree.directory(1)
    assert direct.listdir("d") == ["f"]
    direct.unlink("d/f")
    direct.listdir("")
    asked.clear()
    direct.run(direct.fs.names.rmdir, top, b"d")
    assert asked == []
    assert direct.listdir("") == []


def test_what_another_node_has_just_removed_does_not_keep_a_directory(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct(held=True)
    (direct.shared / "d").mkdir()
    (direct.shared / "d/f").touch()
    assert direct.listdir("d") == ["f"]
    (direct.shared / "d/f").unlink()
    direct.rmdir("d")
    assert direct.listdir("") == []


def test_a_directory_that_another_node_wrote_into_is_not_removed(
    make_direct: Callable[..., Direct], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = make_direct(held=True)
    (direct.shared / "d").mkdir()
    assert direct.listdir("d") == []
    (direct.shared / "d/f").touch()
    monkeypatch.setattr(Scans, "recent", lambda *_: None)  # a quarter of a second later
    with pytest.raises(OSError, match="not empty"):
        direct.rmdir("d")


def test_directories_committed_since_the_shared_tier_was_asked(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tierfs checkpoints` right after a seal: the overlay has the name no more."""
    state = direct.fs.tree.directory(ROOT_INO)
    monkeypatch.setattr(direct.fs.listings.scans, "_clock", lambda: 0.0)
    assert direct.run(direct.fs.listings.directories, state) == []
    direct.mkdir("made")
    direct.write_file("file", b"no directory")
    direct.settle()
    assert direct.run(direct.fs.listings.directories, state) == [b"made"]
