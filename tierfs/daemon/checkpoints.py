"""What is told of checkpoints: which there are, and how they stand."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import trio

from tierfs.control.access import only_visible
from tierfs.control.results import Checkpoint, CheckpointsResult, Problem, Removal, Unsettled
from tierfs.control.server import Peer
from tierfs.daemon.report import Report, counts_as_open
from tierfs.daemon.rooms import Rooms
from tierfs.errors import DirectoryGone, TierfsError
from tierfs.groups import Decision, Verdict, number_of
from tierfs.model import Kind, Name, ObjectId, Op, OpKind
from tierfs.namespace.grouping.survey import Seen
from tierfs.namespace.overlay.nodes import Node
from tierfs.shared import ManifestLine, Place, Record

WALK_THREADS = 2
SIZE_SECONDS = 2.0
"""How long an answer waits to learn what held removals will free."""


@dataclass(slots=True)
class _Lists:
    whole: list[Checkpoint] = field(default_factory=list)
    in_flight: list[Checkpoint] = field(default_factory=list)
    unsettled: list[Checkpoint] = field(default_factory=list)
    broken: list[Checkpoint] = field(default_factory=list)


class CheckpointReport:
    """Looks at checkpoints, those of other nodes too."""

    def __init__(self, rooms: Rooms, report: Report, access: trio.CapacityLimiter) -> None:
        self._rooms = rooms
        self._report = report
        self._access = access
        self._walks = trio.CapacityLimiter(WALK_THREADS)
        self._sizes: dict[int, int] = {}

    async def below(self, node: Node, path: str, peer: Peer) -> CheckpointsResult:
        """All below the directory `node`, which stands at `path`, that the caller may see."""
        assert node.directory is not None
        found = _Lists()
        for seen in await self._rooms.fs.survey.below(node):
            await self._add(seen, found)
        removals = await self.removals(await self._held_below(node.directory))
        hidden, shown = 0, []
        for each in (found.whole, found.in_flight, found.unsettled, found.broken):
            visible, more = await only_visible(each, peer, self._access)
            shown.append(tuple(sorted(visible, key=_by_number)))
            hidden += more
        held, more = await only_visible(removals, peer, self._access)
        return CheckpointsResult(
            path=path, latest=_latest(shown[0]), whole=shown[0], in_flight=shown[1],
            unsettled=shown[2], broken=shown[3], removals=held, hidden=hidden + more,
        )  # fmt: skip

    async def standing(self, node: Node, peer: Peer) -> tuple[str | None, list[Problem], int]:
        """What a job that starts finds below `node`, as far as the caller may see it.

        The path of the newest whole checkpoint, None if there is none; those that another member
        says are broken, and how many more the caller may not see.
        """
        found = await self._rooms.fs.survey.below(node)
        whole = [self._whole(seen, None, None) for seen in found if _is_whole(seen)]
        visible, _ = await only_visible(whole, peer, self._access)
        broken, hidden = await only_visible(await self._broken(found), peer, self._access)
        return _latest(visible), list(broken), hidden

    async def _broken(self, found: Iterable[Seen]) -> list[Problem]:
        core, problems = self._rooms.fs.core, []
        for seen in found:
            if seen.unsealed and core.groups.get(seen.directory) is None:
                record, _ = await core.on_shared(self._recorded, core.places.group(seen.directory))
                if record is not None and record.broken:
                    problems.append(Problem(path=self._path(seen), reason=record.broken))
        return problems

    def unsettled(self) -> list[Unsettled]:
        """The checkpoints of this node that nothing will publish by itself."""
        return [
            Unsettled(
                path=self._report.path_of_directory(group.id), reason=group.verdict.reason,
                missing=group.verdict.missing,
            )
            for group in self._rooms.fs.core.groups
            if group.verdict is not None and group.verdict.decision is Decision.UNSETTLED
        ]  # fmt: skip

    async def removals(self, held: Iterable[tuple[Op, str]]) -> list[Removal]:
        """What is to be told of these held removals."""
        deadline = trio.current_time() + SIZE_SECONDS
        told = self._rooms.writeback.removals.told
        return [
            Removal(
                path=self._report.path_of(op), reason=told(op, reason),
                bytes=await self._size(op, deadline),
                held_seconds=round(max(0.0, (time.time_ns() - op.timestamp_ns) / 1e9), 3),
            )
            for op, reason in held
        ]  # fmt: skip

    async def _held_below(self, directory: ObjectId) -> list[tuple[Op, str]]:
        tree = self._rooms.fs.tree
        return [
            each for each in self._rooms.backlog.held()
            if tree.is_within(each[0].parent, directory)
        ]  # fmt: skip

    # -- one checkpoint ----------------------------------------------------------------------------

    async def _add(self, seen: Seen, found: _Lists) -> None:
        core = self._rooms.fs.core
        record, manifest = await core.on_shared(self._recorded, core.places.group(seen.directory))
        if not seen.unsealed:
            if seen.moving:
                each = self._whole(seen, record, manifest, "its rename is not committed")
                found.in_flight.append(each)
            else:
                found.whole.append(self._whole(seen, record, manifest))
            return
        group = core.groups.get(seen.directory)
        verdict = None
        if group is not None:
            verdict = await self._rooms.fs.sealing.judge_again(group)
            if core.groups.get(seen.directory) is not group:
                found.whole.append(self._whole(seen, record, manifest))
                return
        each = await self._unsealed(seen, record, verdict, known=group is not None)
        if group is not None and group.seal is not None and group.seal.mark is not None:
            found.broken.append(replace(each, reason=group.seal.error or "cannot be published"))
            return
        if group is None and each.broken_files:
            found.broken.append(each)
            return
        match None if verdict is None else verdict.decision:
            case Decision.BROKEN:
                found.broken.append(each)
            case Decision.UNSETTLED:
                found.unsettled.append(each)
            case _:
                found.in_flight.append(each)

    def _recorded(self, group: ObjectId) -> tuple[Record | None, list[ManifestLine] | None]:
        """Nothing of what another version of tierfs wrote."""
        shared = self._rooms.shared
        try:
            return shared.last_record(group), shared.manifest(group)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return None, None

    def _whole(
        self, seen: Seen, record: Record | None, manifest: list[ManifestLine] | None,
        reason: str = "",
    ) -> Checkpoint:  # fmt: skip
        files, size, opened = self._pending(seen.directory)
        return Checkpoint(
            path=self._path(seen), mtime=seen.attributes.mtime_ns / 1e9, reason=reason,
            files=None if manifest is None else len(manifest),
            bytes=None if manifest is None else sum(line.size for line in manifest),
            manifest=record is not None and manifest is not None, pending_files=files,
            pending_bytes=size, open_files=opened,
        )  # fmt: skip

    async def _unsealed(
        self, seen: Seen, record: Record | None, verdict: Verdict | None, *, known: bool
    ) -> Checkpoint:
        files, size, opened = self._pending(seen.directory)
        staged = await self._staged(seen)
        members = {self._rooms.store.member} if known else set()
        reason, lost = "is being published", () if verdict is None else verdict.files
        group = self._rooms.fs.core.groups.get(seen.directory)
        if group is not None and group.is_given_up:
            reason = "who wrote it over was killed: will be as it was published"
        if record is not None:
            members |= record.writers
        if not known:
            reason = "written on another node; nothing on this node writes it"
            if record is not None and record.broken:
                reason, lost = record.broken, tuple(os.fsdecode(path) for path in record.files)
        elif verdict is not None:
            reason = verdict.reason
        return Checkpoint(
            path=self._path(seen), mtime=seen.attributes.mtime_ns / 1e9, files=len(staged),
            bytes=sum(staged), pending_files=files, pending_bytes=size, open_files=opened,
            members=tuple(sorted(members)), reason=reason,
            age_seconds=None if record is None else round(time.time() - record.time_ns / 1e9, 3),
            missing=() if verdict is None else verdict.missing,
            broken_files=lost,
        )  # fmt: skip

    async def _staged(self, seen: Seen) -> list[int]:
        """The sizes of the files of an unsealed checkpoint that the shared tier has."""
        core = self._rooms.fs.core
        try:
            if core.places.exists(seen.directory):
                found = await core.at(seen.directory, core.shared.walk)
            elif seen.place is not None:
                found = await core.on_shared(core.shared.walk, seen.place)
            else:
                return []
        except DirectoryGone:
            return []
        return [each.size for each in found if each.kind is not Kind.DIRECTORY]

    def _pending(self, directory: ObjectId) -> tuple[int, int, int]:
        """Files that are pending, their bytes, and files that are open."""
        puts = [op for op in self._rooms.backlog.under(directory) if op.kind is OpKind.PUT]
        closed = [op for op in puts if not counts_as_open(op)]
        return len(closed), sum(op.size for op in closed), len(puts) - len(closed)

    def _path(self, seen: Seen) -> str:
        return os.path.join(self._rooms.mountpoint, os.fsdecode(b"/".join(seen.path)))

    # -- what a removal frees ----------------------------------------------------------------------

    async def _size(self, op: Op, deadline: float) -> int | None:
        if op.row in self._sizes or trio.current_time() >= deadline:
            return self._sizes.get(op.row)
        shared, places = self._rooms.shared, self._rooms.fs.core.places
        with trio.move_on_at(deadline):
            try:
                # where it has its name: its next generation, if one is begun, stands elsewhere
                parent = places.path(op.parent)
                place = Place(b"/".join(filter(None, (parent, op.name))))
                found = await trio.to_thread.run_sync(
                    shared.walk, place, limiter=self._walks, abandon_on_cancel=True
                )
            except OSError:
                return None
            held = {op.row for op, _ in self._rooms.backlog.held()}
            self._sizes = {row: size for row, size in self._sizes.items() if row in held}
            self._sizes[op.row] = sum(each.size for each in found if each.kind is Kind.FILE)
            return self._sizes[op.row]
        return None


def directory_at(node: Node | None, path: str) -> Node:
    """`node`, found at `path`, if it is a directory; TierfsError."""
    if node is None or node.directory is None:
        raise TierfsError(f"{path}: {'no such directory' if node is None else 'not a directory'}")
    return node


def _is_whole(seen: Seen) -> bool:
    return not seen.unsealed and not seen.moving


def _by_number(each: Checkpoint) -> tuple[str, tuple[int, ...], str]:
    parent, name = os.path.split(each.path)
    return parent, _number(name), name


def _number(name: str) -> tuple[int, ...]:
    text: Name = os.fsencode(name)
    return number_of(text)


def _latest(whole: Iterable[Checkpoint]) -> str | None:
    """Of `whole`, that with the highest number in its name, then the youngest."""
    newest = max(
        whole, key=lambda each: (_number(os.path.basename(each.path)), each.mtime), default=None
    )
    return None if newest is None else newest.path
