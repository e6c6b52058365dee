"""`tierfs salvage`: what a local tier without its journal holds is brought to the shared tier."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import trio

from tierfs.config.groups import GroupRule
from tierfs.errors import ObjectChanged, TierfsError
from tierfs.groups import Patterns
from tierfs.local import ObjectStore, Seen, Survey
from tierfs.mend import tiers
from tierfs.mend.landscape import Landscape, shown_in_mount
from tierfs.mend.plan import DOUBT_NS, Claim, Claims, Fate, judge_file, sort_out
from tierfs.model import Attributes, Kind, Name, new_object_id
from tierfs.osio import OS, RENAME_NOREPLACE, make_os
from tierfs.shared import FileJob, Place, SharedTier, Staged, unstaged_name
from tierfs.shared.digest import digest_of_file

REPLACED = "tierfs salvage has put a newer version from a local tier in its place"

GONE = "its directory is not there any more, or its label is damaged"
EARLIER = "an earlier version of what has the name"

_TRIES = 3
"""The first may find that nothing can be renamed from staging into the directory."""


@dataclass(slots=True)
class Salvaged:
    """What came of it. Paths are those that a mount shows, from its root.

    Attributes:
        committed: files and symlinks that are on the shared tier now.
        same: count of files that were there already.
        directories: that were made.
        beside: what is kept elsewhere: ``path``, ``why``, ``kept``.
        failed: what could not be kept: ``path``, ``why``. The local tier still has it.
        unsealed: checkpoints, not known to be whole, that got files: they stand as
            ``.staging_NAME``, which no mount shows.
        older, stubs, special: counts, see :class:`tierfs.mend.plan.Claims`.
    """

    committed: list[str] = field(default_factory=list)
    same: int = 0
    directories: list[str] = field(default_factory=list)
    beside: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    unsealed: list[str] = field(default_factory=list)
    older: int = 0
    stubs: int = 0
    special: int = 0


def salvage(
    local: Path, shared: Path, into: bytes | None, *, all_closed: bool,
    groups: tuple[GroupRule, ...] = (), everything: bool = False,
) -> Salvaged:  # fmt: skip
    """Commit what is whole of `local`, keep the rest beside it. Changes nothing in `local`.

    `into`: the directory, from the root of `shared`, for what does not get its name; None: the
    quarantine. `all_closed`: nothing was being written at the end. `groups`: the settings
    that say which directories are checkpoints. `everything`: keep earlier versions, too.

    Raises TierError, OSError.
    """
    system = make_os()
    patterns = Patterns(groups)
    with Survey(local, system) as survey:
        store = ObjectStore.open(local, system)  # for its lock: no daemon may be at it
        try:
            with tiers.written_to(shared, survey.member) as tier:
                survey.attach(tier.spill_directory())
                landscape = Landscape.of(tier)
                claims = sort_out(list(survey.objects()), landscape, patterns)
                doubtful_ns = claims.last_ns + (1 if all_closed else -DOUBT_NS)
                work = _Salvage(system, tier, survey, landscape, patterns, into)
                if not everything:
                    claims.earlier.clear()
                return work.run(claims, doubtful_ns)
        finally:
            store.close()


class _Salvage:
    def __init__(
        self, system: OS, tier: SharedTier, survey: Survey, landscape: Landscape,
        patterns: Patterns, into: bytes | None,
    ) -> None:  # fmt: skip
        self._system = system
        self._tier = tier
        self._survey = survey
        self._landscape = landscape
        self._into = into
        self._patterns = patterns
        self._rows = itertools.count(tiers.FIRST_ROW)
        self._done = Salvaged()
        self._trouble: list[bytes] = []
        self._earlier: set[bytes] = set()

    def run(self, claims: Claims, doubtful_ns: int) -> Salvaged:
        """Directories, then contents in their order."""
        done = self._done
        done.older, done.stubs, done.special = claims.older, claims.stubs, claims.special
        for path, seen in claims.directories:
            self._attempt(path, partial(self._make_directory, path, seen))
        for seen in claims.homeless:
            path = b"lost/%016x-" % seen.id + (seen.name or b"")
            self._attempt(path, partial(self._aside, seen, path, GONE))
        for claim in claims.earlier:
            self._attempt(claim.path, partial(self._keep_earlier, claim))
        self._trouble = [each for each in self._trouble if each not in self._earlier]
        for claim in claims.contents:
            self._attempt(claim.path, partial(self._bring, claim, doubtful_ns))
        return done

    def _keep_earlier(self, claim: Claim) -> None:
        """An earlier version may be the last one that was closed; nothing is held for it."""
        if claim.seen.attributes.kind is Kind.FILE and not self._is_there(claim):
            self._aside(claim.seen, claim.path, EARLIER)
            self._earlier.add(claim.path)

    def _attempt(self, path: bytes, call: Callable[[], None]) -> None:
        try:
            call()
        except (OSError, ObjectChanged, TierfsError) as error:
            why = getattr(error, "strerror", None) or str(error) or "it was changed meanwhile"
            self._trouble.append(path)
            self._done.failed.append({"path": _shown(path), "why": why})

    # -- one of them ------------------------------------------------------------------------------

    def _bring(self, claim: Claim, doubtful_ns: int) -> None:
        is_link = claim.seen.attributes.kind is Kind.SYMLINK
        fate, why = self._judge_link(claim) if is_link else self._judge(claim, doubtful_ns)
        if fate is Fate.COMMIT and (trouble := self._holding(claim)) is not None:
            fate, why = Fate.BESIDE, f"held: it speaks of {_shown(trouble)}, which is not whole"
        if fate is Fate.COMMIT and (whole := self._landscape.sealed(claim.path, self._patterns)):
            fate, why = Fate.BESIDE, f"held: {_shown(whole)} is whole and would be changed"
        if fate is Fate.SAME:
            self._done.same += 1
        elif fate is Fate.BESIDE:
            self._aside(claim.seen, claim.path, why)
        else:
            self._commit(claim)
            self._done.committed.append(_shown(claim.path))
            self._note_unsealed(claim.path)

    def _is_there(self, claim: Claim) -> bool:
        return self._judge(claim, 0)[0] is Fate.SAME

    def _judge(self, claim: Claim, doubtful_ns: int) -> tuple[Fate, str]:
        mine = claim.seen.attributes
        alike = [
            found
            for found in self._landscape.files.get((mine.size, mine.mtime_ns), [])
            if self._into is None or not found.path.startswith(self._into + b"/")
        ]
        here = self._landscape.entries.get(claim.path)

        def digest(kind: str) -> str:
            with self._survey.opened(claim.seen.id) as fd:
                return digest_of_file(self._system, fd, kind)

        return judge_file(claim.seen, here, alike, digest, doubtful_ns)

    def _judge_link(self, claim: Claim) -> tuple[Fate, str]:
        target = self._survey.target(claim.seen.id)
        folder, name = os.path.split(claim.path)
        entry = None
        if claim.path in self._landscape.entries:
            entry = self._tier.lookup(Place(folder), name)
        if entry is None:
            return Fate.COMMIT, "missing there"
        if entry.target == target:
            return Fate.SAME, "the shared tier has it"
        return Fate.BESIDE, f"conflict: the shared tier has another; this leads to {_shown(target)}"

    def _holding(self, claim: Claim) -> bytes | None:
        """What keeps a commit name or pointer from being committed: trouble in what it covers."""
        if claim.rank[0] == 0:
            return None
        cover = os.path.dirname(claim.path)
        if claim.seen.attributes.kind is Kind.SYMLINK:
            target = self._survey.target(claim.seen.id)
            if not target.startswith(b"/"):
                cover = os.path.normpath(os.path.join(cover, target))
        return next((each for each in self._trouble if _concerns(each, cover)), None)

    def _note_unsealed(self, path: bytes) -> None:
        """Pointers must not lead to a checkpoint of which nobody knows whether it is whole."""
        names = path.split(b"/")
        for count, name in enumerate(names[:-1], start=1):
            if unstaged_name(name) is not None:
                top = b"/".join(names[:count])
                if _shown(top) not in self._done.unsealed:
                    self._done.unsealed.append(_shown(top))
                    self._trouble.append(top)
                return

    # -- bringing ---------------------------------------------------------------------------------

    def _make_directory(self, path: bytes, seen: Seen) -> None:
        if self._landscape.sealed(path, self._patterns) is not None:
            return  # what is in it is kept beside
        folder, name = os.path.split(path)
        with self._survey.opened(seen.id) as fd:
            xattrs = self._survey.xattrs(fd)
        place = Place(folder)
        staged = self._tier.stage_directory(
            next(self._rows), name, seen.attributes, xattrs, seen.id, place=place
        )
        entry = self._tier.publish_directory(staged, place, name)
        self._done.directories.append(_shown(path))
        final = unstaged_name(name)
        if final is not None:
            if entry.directory_id == seen.id:
                self._tier.open_group(place, final, seen.id, entry.st.st_ino)
            self._note_unsealed(path + b"/")

    def _commit(self, claim: Claim) -> None:
        folder, name = os.path.split(claim.path)
        here = self._landscape.entries.get(claim.path)
        for attempt in range(_TRIES):
            staged = self._stage(claim.seen, Place(folder), name)
            try:
                if here is None:
                    self._tier.publish_file(staged, Place(folder), name, RENAME_NOREPLACE)
                else:
                    self._tier.replace_kept(staged, Place(folder), name, here.inode, REPLACED)
                return
            except OSError as error:
                self._tier.discard_own(staged)
                if error.errno != errno.EXDEV or attempt + 1 == _TRIES:
                    raise

    def _stage(self, seen: Seen, place: Place, name: Name) -> Staged:
        row = next(self._rows)
        if seen.attributes.kind is Kind.SYMLINK:
            return self._tier.stage_symlink(
                row, name, self._survey.target(seen.id), seen.attributes, place=place
            )
        with self._survey.opened(seen.id) as fd:
            job = FileJob(
                source_fd=fd, size=seen.attributes.size, row=row, name=name, place=place,
                attributes=seen.attributes, xattrs=self._survey.xattrs(fd),
            )  # fmt: skip
            return trio.run(self._tier.stage_file, job)

    def _aside(self, seen: Seen, path: bytes, why: str) -> None:
        self._trouble.append(path)
        shown = shown_in_mount(path)
        kept = self._into_quarantine(seen, shown, why) if self._into is None else None
        if self._into is not None:
            kept = self._into_directory(seen, self._into + b"/" + shown)
        self._done.beside.append({"path": _shown(path), "why": why, "kept": kept or ""})

    def _into_quarantine(self, seen: Seen, path: bytes, why: str) -> str | None:
        known = self._tier.kept_already(path, seen.attributes.size, seen.attributes.mtime_ns)
        if known is not None:
            return known
        staged = self._stage(seen, Place(b""), os.path.basename(path) or b"file")
        return self._tier.put_in_quarantine(staged, path, why)

    def _into_directory(self, seen: Seen, path: bytes) -> str:
        folder, name = os.path.split(path)
        self._make_private(folder)
        there = self._tier.lookup(Place(folder), name)
        mine = seen.attributes
        if there is not None and (there.st.st_size, there.st.st_mtime_ns) != (
            mine.size,
            mine.mtime_ns,
        ):
            name, there = b"%b.%016x" % (name[:230], seen.id), None
        if there is None:
            staged = self._stage(seen, Place(folder), name)
            try:
                self._tier.publish_file(staged, Place(folder), name, RENAME_NOREPLACE)
            except FileExistsError:  # an earlier salvage
                self._tier.discard(staged)
        return self._tier.shown(Place(folder), name)

    def _make_private(self, path: bytes) -> None:
        """The directory `path` and those above it, as far as they are missing: for root alone."""
        names = path.split(b"/")
        for count, name in enumerate(names):
            place = Place(b"/".join(names[:count]))
            if self._tier.lookup(place, name) is None:
                now = self._system.fstat("salvage.stat", self._tier.root_fd)
                attributes = replace(Attributes.of(now), mode=0o700, uid=0, gid=0)
                staged = self._tier.stage_directory(
                    next(self._rows), name, attributes, {}, new_object_id(), place=place
                )
                self._tier.publish_directory(staged, place, name)


def _concerns(trouble: bytes, cover: bytes) -> bool:
    """Whether something that is not whole lies in what a pointer covers, or around it."""
    inner, outer = shown_in_mount(trouble), shown_in_mount(cover)
    if len(inner) < len(outer):
        inner, outer = outer, inner
    return not cover or inner == outer or inner.startswith(outer + b"/")


def _shown(path: bytes) -> str:
    return os.fsdecode(shown_in_mount(path))
