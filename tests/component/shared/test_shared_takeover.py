"""A node that is gone for good was writing a sealed checkpoint again; another one goes on."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.component.shared import takeover_script
from tests.component.shared.crashing import LOOKS, die
from tests.component.shared.group_support import (
    FINAL,
    GROUP,
    KEEP,
    NAME,
    OLDER,
    STAGED,
    begin_next,
    fail_to_seal,
    files_in,
    fill,
    make_directory,
    seal,
    sealed_group,
    stage_group,
    texts,
    whole,
)
from tests.component.shared.support import MEMBER, TOP, Settings, make_tier, names
from tests.faults import FaultyOS, failing
from tierfs.model import Kind
from tierfs.osio import OS
from tierfs.shared import GroupState, Place, SharedTier, staging_name
from tierfs.shared.groups import Left, Record
from tierfs.shared.presence import Others

OpenTier = Callable[..., SharedTier]
OTHER, THIRD = "b" * 32, "c" * 32
OF_GROUPS = ("presence.", "reopen.", "linked.", "record.", "manifest.", "seal.", "trash.")
AT_ONCE = Settings(lease=0.0)
"""Nobody waits for the one who is gone."""
MUST_HAVE = {
    "reopen.mkdir", "reopen.link", "reopen.rename", "linked.publish", "record.publish",
    "manifest.publish", "seal.exchange", "seal.fsync_dir", "trash.rename",
}  # fmt: skip


def deaths(seen: list[str]) -> list[str]:
    """The first and the last change of each label, from the beginning of the next generation on."""
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for step in seen:
        counts[step] += 1
        if counts["reopen.open"] and step.startswith(OF_GROUPS) and not step.endswith(LOOKS):
            first.setdefault(step, counts[step])
    return [
        f"{step}:{nth}:kill" for step in first for nth in sorted({first[step], counts[step]})
    ]  # fmt: skip


@pytest.mark.parametrize("edited", [False, True], ids=["written", "edited"])
async def test_killed_at_every_step(memory_root: Path, edited: bool) -> None:
    """`edited`: the new node takes its end marker away first, so it is not whole meanwhile."""
    intact = memory_root / "intact"
    intact.mkdir()
    system = FaultyOS()
    await takeover_script.live(intact, intact, system)
    faults = deaths(system.seen)
    assert {fault.split(":")[0] for fault in faults} >= MUST_HAVE
    runs = {fault: memory_root / fault.replace(":", "-") for fault in faults}
    die(Path(takeover_script.__file__), runs, intact)
    for fault, root in runs.items():
        tier = make_tier(root, OS(), member=OTHER, settings=AT_ONCE)
        tier.register("node-b")
        tier.finish_any_seal(TOP, NAME)  # as whoever looks for the name
        assert files_in(root / FINAL) in (whole("old"), whole("lost")), fault
        save(tier, root, edited=edited)
        assert files_in(root / FINAL) == whole("saved"), fault
        tier.sweep_trash(KEEP)
        (root / "fresh").unlink(missing_ok=True)  # of the one who is gone
        assert names(root) == [".tierfs", FINAL], fault
        assert list((root / ".tierfs").glob("trash/*")) == [], fault
        tier.close()


def save(tier: SharedTier, root: Path, *, edited: bool) -> None:
    before = files_in(root / FINAL)
    inode = (root / FINAL).stat().st_ino
    if edited:
        record = tier.reopen_whole(TOP, NAME, GROUP, inode)
        assert tier.reopen_whole(TOP, NAME, GROUP, inode) == record
        assert record.inode == inode
        assert files_in(root / STAGED) == before
    else:
        [top, *_] = rebuilt = tier.reopen_linked(TOP, NAME, GROUP, 7)
        assert tier.reopen_linked(TOP, NAME, GROUP, 7) == rebuilt
        assert files_in(root / FINAL) == before
        inode = top.inode
    assert tier.group_records(GROUP)[-1].state is GroupState.OPEN
    takeover_script.again(root, "saved")
    seal(tier, GROUP, inode)


def test_who_may_be_sealing_is_waited_for(root: Path, open_tier: OpenTier) -> None:
    system = FaultyOS()
    tier, other = open_tier(root, system), open_tier(root, member=OTHER)
    inode = begin_next(tier, root)
    old = (root / FINAL).stat().st_ino
    takeover_script.again(root, "new")
    fail_to_seal(tier, system, "seal.exchange", inode)
    with pytest.raises(BlockingIOError):
        other.reopen_linked(TOP, NAME, GROUP, 7)
    with pytest.raises(BlockingIOError):
        other.reopen_whole(TOP, NAME, GROUP, old)
    seal(tier, GROUP, inode)
    assert files_in(root / FINAL) == whole("new")


# -- a next generation that another node has begun ------------------------------------------------


def left(tier: SharedTier, root: Path) -> int:
    """`tier` has written a file of the sealed checkpoint again, and added one; its inode."""
    inode = begin_next(tier, root)
    (root / "fresh").write_text("left")
    (root / "fresh").rename(root / STAGED / "model.bin")
    (root / STAGED / "added.bin").write_text("left")
    return inode


def test_what_a_lost_node_left_is_not_published_with_what_another_writes(
    root: Path, open_tier: OpenTier
) -> None:
    begun = left(open_tier(root), root)
    other = open_tier(root, member=OTHER, lease=0.0)
    [top, _] = other.reopen_linked(TOP, NAME, GROUP, 7)
    assert top.inode != begun
    assert files_in(root / STAGED) == whole("old")
    seal(other, GROUP, top.inode)
    assert files_in(root / FINAL) == whole("old")
    [kept] = texts(root, "quarantine")
    assert {kept["content/model.bin"], kept["content/added.bin"]} == {"left"}


@pytest.mark.parametrize("whole_one", [False, True])
def test_another_checkpoint_that_a_lost_node_began_goes_to_quarantine(
    root: Path, open_tier: OpenTier, *, whole_one: bool
) -> None:
    """It had removed the sealed one, and made one of the same name; its removal never came."""
    tier = open_tier(root)
    old = sealed_group(tier, root, GROUP, "old")
    stage_group(tier, root, OLDER, "left")
    other = open_tier(root, member=OTHER)

    def begin() -> int:
        if whole_one:
            return other.reopen_whole(TOP, NAME, GROUP, old).inode
        return other.reopen_linked(TOP, NAME, GROUP, 7)[0].inode

    for _ in range(2):
        with pytest.raises(BlockingIOError):
            begin()
    tier.say_alive(OLDER)
    assert other.look_again()
    with pytest.raises(BlockingIOError):
        begin()
    assert files_in(root / STAGED) == whole("left")
    later = open_tier(root, member=THIRD, lease=0.0)
    other = later
    inode = begin()
    assert files_in(root / STAGED) == whole("old")
    seal(later, GROUP, inode)
    assert files_in(root / FINAL) == whole("old")
    [kept] = texts(root, "quarantine")
    assert kept["content/model.bin"] == "left model.bin"


def test_another_checkpoint_that_this_node_writes_stays(root: Path, open_tier: OpenTier) -> None:
    tier = open_tier(root)
    sealed_group(tier, root, GROUP, "old")
    stage_group(tier, root, OLDER, "new")
    with pytest.raises(FileExistsError):
        tier.reopen_linked(TOP, NAME, GROUP, 7)
    assert files_in(root / STAGED) == whole("new")


def test_what_a_lost_node_left_goes_with_the_removal(root: Path, open_tier: OpenTier) -> None:
    left(open_tier(root), root)
    other = open_tier(root, member=OTHER, lease=0.0)
    other.trash(TOP, NAME, (root / FINAL).stat().st_ino, GROUP)
    assert names(root) == [".tierfs"]


def test_one_who_lives_is_joined_and_one_who_may_live_waited_for(
    root: Path, open_tier: OpenTier
) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    begun = left(tier, root)
    old = (root / FINAL).stat().st_ino
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            other.reopen_linked(TOP, NAME, GROUP, 7)
        with pytest.raises(BlockingIOError):
            other.trash(TOP, NAME, old, GROUP)
    tier.say_alive(GROUP)
    assert other.look_again()
    [top, _] = other.reopen_linked(TOP, NAME, GROUP, 7)
    assert top.inode == begun
    record = other.last_record(GROUP)
    assert record is not None
    assert record.members == {tier.member, OTHER}
    seal(other, GROUP, begun)
    assert files_in(root / FINAL)["added.bin"] == "left"
    assert not list((root / f".tierfs/groups/{GROUP:016x}").glob("writer-*"))


def test_one_who_lives_goes_on_when_the_sealed_one_is_removed(
    root: Path, open_tier: OpenTier
) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    begun = left(tier, root)
    old = (root / FINAL).stat().st_ino
    with pytest.raises(BlockingIOError):
        other.trash(TOP, NAME, old, GROUP)
    tier.say_alive(GROUP)
    other.trash(TOP, NAME, old, GROUP)
    seal(tier, GROUP, begun)
    assert files_in(root / FINAL)["model.bin"] == "left"


def test_who_says_nothing_for_a_lease_is_gone(root: Path, open_tier: OpenTier) -> None:
    begun = left(open_tier(root), root)
    other = open_tier(root, member=OTHER, lease=0.5)
    end = time.monotonic() + 0.5
    with pytest.raises(BlockingIOError):
        other.reopen_linked(TOP, NAME, GROUP, 7)
    while not other.look_again():
        assert time.monotonic() < end + 5
    assert time.monotonic() >= end
    [top, _] = other.reopen_linked(TOP, NAME, GROUP, 7)
    assert top.inode != begun


def test_what_was_not_looked_at_all_the_time_says_nothing(root: Path, open_tier: OpenTier) -> None:
    left(open_tier(root), root)
    other = open_tier(root, member=OTHER, lease=0.2)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            other.reopen_linked(TOP, NAME, GROUP, 7)
        time.sleep(0.3)  # it was away itself, or its tier was


def test_others_begin_to_be_watched_while_it_is_looked_at_them(
    root: Path, open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are made from many threads: this one has another begin within its own step."""
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    stage_group(tier, root)
    begun = other.last_record(GROUP)
    assert begun is not None
    other.others(GROUP, begun)
    joined = open_tier(root, member=THIRD).begin(GROUP, begun)
    how = other._how

    def meanwhile(seen: Any) -> Others:
        monkeypatch.undo()
        other.others(GROUP, joined)
        return how(seen)

    monkeypatch.setattr(other, "_how", meanwhile)
    assert other.look_again()
    assert len(other._watched) == 2


def test_a_member_whose_writers_were_killed_leaves_off(root: Path, open_tier: OpenTier) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    begun = left(tier, root)
    tier.leave_off(GROUP)
    tier.say_alive(GROUP)  # of no use: it has no part any more
    assert other.reopen_linked(TOP, NAME, GROUP, 7)[0].inode != begun


@pytest.mark.parametrize("lives", [True, False])
def test_an_unsealed_one_of_another_node(root: Path, open_tier: OpenTier, lives: bool) -> None:
    """The files of a node that saves at the same time count, those of a lost one do not."""
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    stage_group(tier, root)
    place = Place(STAGED.encode())
    begun = other.last_record(GROUP)
    assert begun is not None
    other.others(GROUP, begun)
    if lives:
        tier.say_alive(GROUP)
    else:
        tier.leave_off(GROUP)
    record = other.reopen_unlisted(place, GROUP)
    assert (len(record.stale), record.generation) == ((0, 1) if lives else (2, 2))
    assert record.members == ({tier.member, OTHER} if lives else {OTHER})
    fill(other, root / STAGED, "both")


def test_who_is_gone_has_no_part_in_what_it_began_and_did_not_write(
    root: Path, open_tier: OpenTier
) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER, lease=0.0)
    stage_group(tier, root)
    begun = tier.reopen_unlisted(Place(STAGED.encode()), GROUP)
    record = other.reopen_unlisted(Place(STAGED.encode()), GROUP)
    assert (record.stale, record.generation) == (begun.stale, begun.generation)
    assert record.members == {OTHER}


@pytest.mark.parametrize("lives", [True, False])
def test_an_unsealed_one_of_a_node_of_which_nothing_is_known(
    root: Path, open_tier: OpenTier, lives: bool
) -> None:
    """Nobody waits: what its files are is decided later."""
    tier, other = open_tier(root), open_tier(root, member=OTHER, lease=0.4)
    stage_group(tier, root)
    found = tier.walk(Place(STAGED.encode()))
    there = {each.incarnation for each in found if each.kind is not Kind.DIRECTORY}
    begun = other.reopen_unlisted(Place(STAGED.encode()), GROUP)
    assert (begun.stale, begun.generation) == (frozenset(), 1)
    assert begun.doubtful == (Left(frozenset({tier.member}), frozenset(there)),)
    assert begun.members == {tier.member, OTHER}
    assert other.settle_doubts(GROUP, begun) == begun
    end = time.monotonic() + 5
    record = begun
    while record.doubtful and time.monotonic() < end:
        if lives:
            tier.say_alive(GROUP)
        record = other.settle_doubts(GROUP, record)
    assert record == other.last_record(GROUP)
    assert (record.stale, record.generation) == ((set(), 1) if lives else (there, 2))
    assert record.members == ({tier.member, OTHER} if lives else {OTHER})


def test_who_is_doubted_and_lives_knows_that(root: Path, open_tier: OpenTier) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    stage_group(tier, root)
    begun = other.reopen_unlisted(Place(STAGED.encode()), GROUP)
    record = tier.settle_doubts(GROUP, begun)
    assert (record.doubtful, record.stale, record.members) == ((), set(), begun.members)


def test_who_has_not_sent_all_is_known_to_others(root: Path, open_tier: OpenTier) -> None:
    tier, other = open_tier(root), open_tier(root, member=OTHER, lease=0.2)
    stage_group(tier, root)
    begun = other.begin(GROUP, _last(other))
    assert other.busy_ones(GROUP, begun) == ((tier.member,), ())
    assert tier.busy_ones(GROUP, begun) == ((OTHER,), ())
    tier.say_alive(GROUP, busy=False)
    assert other.busy_ones(GROUP, begun) == ((), ())
    tier.say_alive(GROUP)
    assert other.busy_ones(GROUP, begun) == ((tier.member,), ())
    end = time.monotonic() + 5
    while other.busy_ones(GROUP, begun)[0]:
        assert time.monotonic() < end
    assert other.busy_ones(GROUP, begun) == ((), (tier.member,))


def _last(tier: SharedTier) -> Record:
    last = tier.last_record(GROUP)
    assert last is not None
    return last


def test_one_that_cannot_be_looked_at_keeps_no_other_from_being_looked_at(
    root: Path, open_tier: OpenTier
) -> None:
    system = FaultyOS()
    tier, other = open_tier(root), open_tier(root, system, member=OTHER)
    for group, name in (GROUP, b"checkpoint-6"), (OLDER, b"checkpoint-7"):
        inode = make_directory(tier, TOP, staging_name(name), group)
        record = tier.open_group(TOP, name, group, inode)
        assert other.others(group, record) is Others.UNKNOWN
        tier.say_alive(group)
    system.hook = failing("presence.open", errno.EIO)
    assert other.look_again()
    system.hook = failing("presence.open", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        other.look_again()


def test_what_this_member_left_counts_no_more_unless_another_goes_on_with_it(
    root: Path, open_tier: OpenTier
) -> None:
    """What its killed writers had written over is as it was sealed, when it is published."""
    tier, other = open_tier(root), open_tier(root, member=OTHER)
    inode = left(tier, root)
    staged = Place(STAGED.encode(), inode, GROUP)
    tier.say_alive(GROUP)
    for _ in range(2):
        with suppress(BlockingIOError):
            other.reopen_linked(TOP, NAME, GROUP, 7)
        tier.say_alive(GROUP)
        other.look_again()
    with pytest.raises(BlockingIOError):
        tier.reopen_unlisted(staged, GROUP)
    other.say_alive(GROUP)
    tier.look_again()
    record = tier.reopen_unlisted(staged, GROUP)
    assert (record.generation, record.stale) == (2, frozenset())
    assert record.members == {MEMBER, OTHER}
    alone = open_tier(root, lease=0.0)
    record = alone.reopen_unlisted(staged, GROUP)
    assert (record.generation, len(record.stale)) == (3, 2)
    assert alone.reopen_unlisted(staged, GROUP).stale == record.stale
    back = alone.taken_back(TOP, NAME, GROUP, record.stale)
    assert set(back) == {b"model.bin"}
    alone.seal(TOP, NAME, GROUP, inode, manifest=[], stale=record.stale, row=8)
    assert files_in(root / FINAL) == whole("old")
    assert sorted(each["content"] for each in texts(root, "quarantine")) == ["left", "left"]
