"""`tierfs doctor --profile`: why a checkpoint is published, or is not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import trio

from tierfs.config import NO_PROFILE
from tierfs.control import requests
from tierfs.control.access import may_list, only_visible
from tierfs.control.results import FileRules, ProfileResult, Writer
from tierfs.control.server import Peer, Send
from tierfs.daemon.checkpoints import directory_at
from tierfs.daemon.report import Report
from tierfs.daemon.rooms import Rooms
from tierfs.errors import TierfsError
from tierfs.groups import Decision, Facts, Found, Profile, Verdict, in_force, judge, rules_met
from tierfs.model import Kind, Name, ObjectId
from tierfs.namespace.grouping.group import Group
from tierfs.namespace.overlay.nodes import Node


@dataclass(frozen=True, slots=True)
class _Case:
    """What is known of one directory."""

    content: Mapping[Name, Found]
    decision: str
    reason: str
    missing: tuple[str, ...] = ()
    said: Mapping[str, str] | None = None
    writers: tuple[Writer, ...] = ()


class Profiling:
    """Explains; changes nothing."""

    def __init__(self, rooms: Rooms, report: Report, access: trio.CapacityLimiter) -> None:
        self._rooms = rooms
        self._report = report
        self._access = access

    async def profile(
        self, request: requests.Profile, peer: Peer, send: Send
    ) -> tuple[ProfileResult, int]:
        """Answers the request."""
        path = request.path
        if not await may_list(path, peer, self._access):
            raise TierfsError(f"{path}: permission denied")
        node = directory_at(await self._report.find(path), path)
        name = os.fsencode(os.path.basename(path))
        rule = self._rooms.fs.core.groups.patterns.rule_of(name)
        if rule is None or rule.profile == NO_PROFILE or not self._is_topmost(node):
            return self._no_checkpoint(node, path), 0
        case = await self._case(node)
        profile = in_force(rule.profile, case.content)
        counted = [name for name, found in case.content.items() if not found.stale]
        files, hidden = await self._files(path, profile, case.content, peer)
        return ProfileResult(
            path=path, pattern=rule.pattern, proposed=rule.profile, profile=profile.name,
            decision=case.decision, reason=case.reason, missing=case.missing,
            required={need.label: need.met_by(counted) for need in profile.required},
            end_marker=profile.end_marker, pointer=profile.pointer, said=dict(case.said or {}),
            writers=case.writers, files=files, hidden=hidden,
        ), 0  # fmt: skip

    def _is_topmost(self, node: Node) -> bool:
        tree = self._rooms.fs.tree
        assert node.directory is not None
        path = tree.path(node.directory)
        return self._rooms.fs.core.groups.patterns.top(path) == len(path) - 1

    def _no_checkpoint(self, node: Node, path: str) -> ProfileResult:
        patterns, tree = self._rooms.fs.core.groups.patterns, self._rooms.fs.tree
        assert node.directory is not None
        names = tree.path(node.directory)
        top = patterns.top(names)
        rule = patterns.rule_of(names[-1]) if names else None
        if top is not None:
            whole = os.path.join(self._rooms.mountpoint, os.fsdecode(b"/".join(names[: top + 1])))
            reason = f"it is a part of the checkpoint {whole}"
        elif rule is not None:
            reason = "the configuration says that directories of such names are no checkpoints"
        else:
            reason = "no pattern matches its name"
        return ProfileResult(
            path=path, pattern=None if rule is None else rule.pattern, reason=reason,
            required={}, said={},
        )  # fmt: skip

    async def _case(self, node: Node) -> _Case:
        directory = node.directory
        assert directory is not None
        core = self._rooms.fs.core
        group = core.groups.get(directory)
        if group is not None:
            facts = await self._rooms.fs.sealing.examine(group)
            verdict = judge(facts)
            decision = "publishing" if group.seal is not None else verdict.decision.value
            return _Case(
                facts.content, decision, verdict.reason, verdict.missing, _said(facts, verdict),
                _writers(group),
            )  # fmt: skip
        content = await self._walked(directory)
        if core.groups.is_unsealed(directory):
            record = await core.on_shared(core.shared.last_record, core.places.group(directory))
            if record is not None and record.broken:
                lost = {"cannot be committed": _names(record.files)}
                return _Case(content, Decision.BROKEN.value, record.broken, said=lost)
            return _Case(content, "wait", "written on another node; nothing here writes it")
        return _Case(content, "published", "it stands under its name on the shared tier")

    async def _walked(self, directory: ObjectId) -> dict[Name, Found]:
        core = self._rooms.fs.core
        if not core.places.exists(directory):
            return {}
        found = await core.at(directory, core.shared.walk)
        return {
            each.path: Found(each.size, each.inode, index=each.index)
            for each in found if each.kind is not Kind.DIRECTORY
        }  # fmt: skip

    async def _files(
        self, path: str, profile: Profile, content: Mapping[Name, Found], peer: Peer
    ) -> tuple[tuple[FileRules, ...], int]:
        met = rules_met(profile, content)
        files = [
            FileRules(
                path=os.path.join(path, os.fsdecode(name)), size=content[name].size, rules=rules
            )
            for name, rules in met.items()
        ]
        return await only_visible(files, peer, self._access)


def _said(facts: Facts, verdict: Verdict) -> dict[str, str]:
    """The facts that count, as people read them."""
    yes = {True: "yes", False: "no"}
    expect = facts.commit
    said = {
        "open for writing": _names(facts.open_files),
        "not yet committed": _names(facts.pending),
        "cannot be committed": _names(facts.stuck),
        "says that it is not whole": _names(filter(None, [facts.negative])),
        "quiet": f"for {facts.quiet_seconds:.0f} s of {facts.settle:.0f} s",
        "a pointer names it": yes[facts.pointer],
        "tierfs commit": "no" if expect is None else "yes",
        "a newer one beside it": yes[facts.sibling],
        "its writers went on to a newer one": yes[facts.followed],
        "tierfs flush waits for it": yes[facts.flush],
    }
    if facts.flush:
        said["its writers have ended well, or called that flush"] = yes[facts.writers_gone]
    if verdict.until_seconds is not None:
        said["is looked at again"] = f"in {verdict.until_seconds:.0f} s"
    return said


def _names(paths: Iterable[Name]) -> str:
    names = sorted(os.fsdecode(path) for path in paths)
    return ", ".join(names) or "nothing"


def _writers(group: Group) -> tuple[Writer, ...]:
    wrote, closed = group.writers.who_wrote(), group.writers.who_closed()
    return tuple(
        Writer(
            pid=each.pid, state=group.writers.state_of(each).value, wrote=each in wrote,
            closed=each in closed,
        )
        for each in sorted(group.writers.processes(), key=lambda each: (each.pid, each.start))
    )  # fmt: skip
