"""Who takes part in the generation of a checkpoint that is being written, and lives.

A member that takes part has a file beside the state records, and changes it again and again.
Whether another one is gone is told by one's own clock alone: it is, when its file did not change
for `lease` while it was looked at all the time, or was taken away.
"""

from __future__ import annotations

import enum
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tierfs.model import ObjectId
from tierfs.shared import layout
from tierfs.shared.groups import GroupState, Record, Records

BEATS = 12
"""How often within a lease a member that lives says so."""

_WRITE = os.O_WRONLY | os.O_NONBLOCK


class Others(enum.Enum):
    """Those who take part beside this member."""

    LIVING = "living"  # one of them, at least
    GONE = "gone"  # all of them, or there are none
    UNKNOWN = "unknown"  # it has to be looked at for longer


@dataclass(slots=True)
class _Watched:
    """What was seen of something that changes while somebody is at it.

    Attributes:
        since, looked: monotonic times: since when it is unchanged, and of the last look.
        moved: it was seen to change.
    """

    value: bytes
    since: float
    looked: float
    moved: bool = False


_Watch = tuple[ObjectId, str]


class Presence(Records):
    """Blocking calls; `lease` is that of the settings, in seconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watched: dict[_Watch, _Watched] = {}

    def begin(self, group: ObjectId, record: Record) -> Record:
        """Make `record` the state of `group`: this member takes part in its generation.

        BlockingIOError where it was made from a record that is not the last one any more.
        """
        self._take_part(group)
        joined = replace(record, members=record.members | {self.member})
        return self.advance(group, joined, after=record.number or None)

    def say_alive(self, group: ObjectId, busy: bool = True) -> None:
        """This member lives, and takes part in `group`; nothing where that was taken from it.

        `busy`: it has not sent all that it has for it, or is about to have more.
        """
        self._write_pulse(group, _WRITE, busy=busy)

    def takes_part(self, group: ObjectId) -> bool:
        """Whether this member does."""
        return self._pulse(group, self.member) is not None

    def busy_ones(self, group: ObjectId, record: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The other members that take part in `group`, whose state is `record`, and have not sent
        all that they have for it: those that may live, and those that are gone.
        """
        living: list[str] = []
        gone: list[str] = []
        for member in record.members - {self.member}:
            pulse = self._pulse(group, member)
            if pulse is not None and pulse.split()[1:] == [b"1"]:
                stands = self._stands(group, member)
                (gone if stands is Others.GONE else living).append(member)
        return tuple(sorted(living)), tuple(sorted(gone))

    def leave_off(self, group: ObjectId) -> None:
        """Nobody on this member goes on with `group`: what is in it counts as left behind."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                self.remove(directory, layout.writer_name(self.member))
        except FileNotFoundError:
            return

    def others(self, group: ObjectId, record: Record) -> Others:
        """How those stand who write or publish the unsealed `group`, whose state is `record`."""
        if record.state is GroupState.SEALING:
            return self._stands(group, "")  # whoever lives makes the rename at once
        return self.standing(group, record.members - {self.member})

    def standing(self, group: ObjectId, members: Iterable[str]) -> Others:
        """How `members` stand who took part in `group`; this one is not to be among them."""
        found = {self._stands(group, each) for each in members}
        if Others.LIVING in found:
            return Others.LIVING
        return Others.UNKNOWN if Others.UNKNOWN in found else Others.GONE

    @property
    def is_watching(self) -> bool:
        """Whether there is anything to be looked at again."""
        return bool(self._watched)

    def look_again(self) -> bool:
        """Look at all that is being watched; whether somebody turned out to live, or to be gone."""
        before = self._all()
        failed: OSError | None = None
        for group, member in before:
            try:
                self._stands(group, member)
            except OSError as error:
                failed = error  # of this one: the others are looked at all the same
        changed = before != self._all()
        if failed is not None and not changed:
            raise failed
        return changed

    def forget_others(self, group: ObjectId, gone: frozenset[str]) -> None:
        """The members `gone`, this one left out, have no part in it any more if they come back."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                for member in gone - {self.member}:
                    self.remove(directory, layout.writer_name(member))
        except FileNotFoundError:
            return

    # -- inside ------------------------------------------------------------------------------------

    def _take_part(self, group: ObjectId) -> None:
        with self.control(layout.GROUPS, layout.encode_id(group), make=True):
            pass
        self._write_pulse(group, _WRITE | os.O_CREAT, busy=True)

    def _write_pulse(self, group: ObjectId, flags: int, *, busy: bool) -> None:
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                name = layout.writer_name(self.member)
                fd = self.system.open_at("presence.open", directory, name, flags, 0o600)
        except FileNotFoundError:
            return
        try:
            pulse = b"%020d %d\n" % (time.time_ns(), busy)
            self.system.pwrite_all("presence.write", fd, pulse, 0)
        finally:
            self.system.close("presence.close", fd)

    def _pulse(self, group: ObjectId, member: str) -> bytes | None:
        """What changes while `member` takes part in `group`; of "" that is the state itself."""
        try:
            with self.control(layout.GROUPS, layout.encode_id(group)) as directory:
                if member:
                    return self.read_whole("presence", directory, layout.writer_name(member))
                last = self._last(directory)
                return None if last is None else b"%d" % last.number
        except FileNotFoundError:
            return None

    def _stands(self, group: ObjectId, member: str) -> Others:
        value, now = self._pulse(group, member), time.monotonic()
        if value is None:
            self._watched.pop((group, member), None)
            return Others.GONE
        seen = self._watched.get((group, member))
        if seen is None or now - seen.looked > self.settings.lease / 2:
            seen = _Watched(value, now, now)  # what was not looked at all the time says nothing
        elif seen.value != value:
            seen = _Watched(value, now, now, moved=True)
        seen.looked = now
        self._watched[group, member] = seen
        return self._how(seen)

    def _all(self) -> dict[_Watch, Others]:
        # a copy, made in one step: other threads begin to watch, and leave off, meanwhile
        return {watch: self._how(seen) for watch, seen in list(self._watched.items())}

    def _how(self, seen: _Watched) -> Others:
        if seen.looked - seen.since >= self.settings.lease:
            return Others.GONE
        return Others.LIVING if seen.moved else Others.UNKNOWN


def busy(record: Record) -> BlockingIOError:
    """The error for whoever has to wait for another node that has to do with a checkpoint."""
    message = "another node writes the checkpoint, or did until moments ago"
    return BlockingIOError(errno.EAGAIN, message, os.fsdecode(record.path))
