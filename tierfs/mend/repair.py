"""Damaged files of the shared tier, made good from what the local tier still has."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import trio

from tierfs.errors import ObjectChanged, TierfsError
from tierfs.local import Seen, Survey
from tierfs.mend import tiers
from tierfs.model import Attributes, Kind, Name
from tierfs.osio import make_os
from tierfs.shared import FileJob, Place, SharedTier, Staged
from tierfs.shared.digest import digest_kind

WHY = "damaged on the shared tier; tierfs verify --repair has put a local copy in its place"

_TRIES = 2
"""The first may find that nothing can be renamed from staging into the directory."""


class NotRepaired(TierfsError):
    """A damaged file stays as it is; says why."""


class Repairer:
    """Puts local copies in the place of damaged files. All methods block."""

    def __init__(self, tier: SharedTier, survey: Survey) -> None:
        self._tier = tier
        self._survey = survey
        self._rows = itertools.count(tiers.FIRST_ROW)
        self._mended: dict[int, tuple[Place, Name]] = {}
        self._copies: dict[int, list[Seen]] | None = None

    def repair(self, path: str, expected: str) -> str:
        """Bring back the content whose digest is `expected`; a sentence of what was done.

        Owner, mode, times and xattrs stay those of the damaged file, and that is kept in
        quarantine. A copy counts if its content has the digest and its mtime is that of the shared
        file, so that what somebody changed there on purpose is not undone. Raises NotRepaired.
        """
        root = os.fsencode(self._tier.root)
        folder, name = os.path.split(os.path.relpath(os.fsencode(path), root))
        place = Place(folder)
        try:
            entry = self._tier.lookup(place, name)
            if entry is None or not stat.S_ISREG(entry.st.st_mode):
                raise NotRepaired("it is gone")
            return self._repair(place, name, entry.st, expected)
        except OSError as error:
            raise NotRepaired(f"not repaired: {error.strerror or error}") from error

    def _repair(self, place: Place, name: Name, st: os.stat_result, expected: str) -> str:
        for attempt in range(_TRIES):
            staged, source = self._stage(place, name, st, expected)
            try:
                kept = self._tier.replace_kept(staged, place, name, st.st_ino, WHY)
            except OSError as error:
                self._tier.discard_own(staged)
                if error.errno == errno.EXDEV and attempt + 1 < _TRIES:
                    continue
                raise
            self._mended[st.st_ino] = place, name
            return f"repaired from {source}; the damaged file is kept as {kept}"
        raise AssertionError("the last attempt returns or raises")

    def _stage(
        self, place: Place, name: Name, st: os.stat_result, expected: str
    ) -> tuple[Staged, str]:
        row = next(self._rows)
        if st.st_ino in self._mended:
            other = self._mended[st.st_ino]
            staged = self._tier.stage_link(*other, row, place, name)
            return staged, self._tier.shown(*other)
        xattrs = self._tier.xattrs(place, name, st.st_ino)
        candidates = self._candidates(st)
        for seen in candidates:
            with self._job(seen, place, name, st, xattrs, expected, row) as job:
                try:
                    staged = trio.run(self._tier.stage_file, job)
                except ObjectChanged:
                    continue
            if staged.digest == expected:
                return staged, self._survey.shown(seen.id)
            self._tier.discard(staged)
        raise NotRepaired(
            "no copy in the local tier has the recorded content and its modification time"
        )

    @contextmanager
    def _job(
        self, seen: Seen, place: Place, name: Name, st: os.stat_result,
        xattrs: dict[bytes, bytes], expected: str, row: int,
    ) -> Iterator[FileJob]:  # fmt: skip
        with self._survey.opened(seen.id) as fd:
            size = make_os().fstat("repair.stat", fd).st_size
            yield FileJob(
                source_fd=fd, size=size, row=row, name=name,
                attributes=replace(Attributes.of(st), size=size), xattrs=xattrs, place=place,
                keep_setid=True, digest=digest_kind(expected),
            )  # fmt: skip

    def _candidates(self, st: os.stat_result) -> list[Seen]:
        if self._copies is None:
            self._copies = defaultdict(list)
            for seen in self._survey.objects():
                if seen.attributes.kind is Kind.FILE and not seen.is_stub:
                    self._copies[seen.attributes.mtime_ns].append(seen)
        found = self._copies.get(st.st_mtime_ns, [])
        return sorted(found, key=lambda seen: seen.attributes.size != st.st_size)


@contextmanager
def repairing(shared: Path, local: Path) -> Iterator[Repairer]:
    """A repairer of `shared` with the copies in `local`. Raises TierError, OSError."""
    with Survey(local, make_os()) as survey, tiers.written_to(shared, survey.member) as tier:
        yield Repairer(tier, survey)
