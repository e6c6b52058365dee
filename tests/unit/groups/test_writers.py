"""Who writes a checkpoint, and what follows from how they ended."""

from __future__ import annotations

import pytest

from tierfs.groups import (
    POINTER,
    UNKNOWN,
    WORDS,
    Process,
    Removal,
    State,
    Writers,
    flush_may_seal,
    followed,
    listed,
    older_markers,
    removal,
)

RANK0, RANK1 = Process(10, 100), Process(11, 100)


def wrote_by(*processes: Process) -> Writers:
    writers = Writers()
    for process in processes:
        writers.wrote(process)
    return writers


def closed_by(*processes: Process) -> Writers:
    writers = Writers()
    for process in processes:
        writers.closed(process)
    return writers


def shown(writers: Writers, *, open_files: int = 0, quiet_seconds: float = 1e6) -> bool:
    return listed(writers, open_files=open_files, quiet_seconds=quiet_seconds, settle_seconds=30.0)


@pytest.mark.parametrize("killed", [False, True])
def test_listed_while_one_lives(killed: bool) -> None:
    writers = wrote_by(RANK0)
    writers.made(RANK1)
    writers.ended(RANK0, killed=killed)
    assert shown(writers)
    writers.ended(RANK1, killed=killed)
    assert not shown(writers, open_files=1, quiet_seconds=0)


def test_nobody_known_nobody_sees() -> None:
    assert not shown(Writers(), open_files=1, quiet_seconds=0)


def test_without_a_pid_listed_until_settled() -> None:
    writers = wrote_by(UNKNOWN)
    assert shown(writers, quiet_seconds=29)
    assert shown(writers, open_files=1)
    assert not shown(writers, quiet_seconds=30)
    writers.ended(UNKNOWN, killed=False)
    assert writers.processes(State.UNKNOWN) == {UNKNOWN}


def test_a_pid_that_comes_back_is_another_process() -> None:
    writers = wrote_by(RANK0)
    writers.ended(Process(RANK0.pid, 999), killed=True)
    assert writers.processes() == writers.processes(State.LIVING) == {RANK0}


class TestFlush:
    def test_all_exited(self) -> None:
        writers = wrote_by(RANK0, RANK1)
        assert not flush_may_seal(writers, ())
        writers.ended(RANK0, killed=False)
        assert not flush_may_seal(writers, ())
        writers.ended(RANK1, killed=False)
        assert flush_may_seal(writers, ())

    def test_caller_and_ancestors(self) -> None:
        writers = wrote_by(RANK0)
        assert flush_may_seal(writers, {RANK0.pid, 1})
        writers.wrote(RANK1)
        assert not flush_may_seal(writers, {RANK0.pid, 1})
        writers.ended(RANK1, killed=False)
        assert flush_may_seal(writers, {RANK0.pid, 1})

    @pytest.mark.parametrize("maker", ["made", "wrote"])
    def test_killed_is_no_end(self, maker: str) -> None:
        writers = wrote_by(RANK0)
        getattr(writers, maker)(RANK1)
        writers.ended(RANK1, killed=True)
        assert not flush_may_seal(writers, {RANK0.pid})

    def test_unknown_or_none(self) -> None:
        assert not flush_may_seal(wrote_by(UNKNOWN), {0})
        assert not flush_may_seal(Writers(), {RANK0.pid})


class TestFollowed:
    def test_every_writer_has_closed_in_one(self) -> None:
        here = wrote_by(RANK0, RANK1)
        assert not followed(here, [])
        assert not followed(here, [closed_by(RANK0), closed_by(RANK1)])
        assert followed(here, [closed_by(RANK0), closed_by(RANK0, RANK1)])

    def test_open_is_not_closed(self) -> None:
        assert not followed(wrote_by(RANK0), [wrote_by(RANK0)])

    def test_who_only_made_the_directory_need_not(self) -> None:
        here = closed_by(RANK0)
        here.made(RANK1)
        assert followed(here, [closed_by(RANK0)])

    def test_started_again_after_a_kill(self) -> None:
        here = wrote_by(RANK0)
        here.ended(RANK0, killed=True)
        assert not followed(here, [closed_by(Process(RANK0.pid, 200))])

    def test_unknown_or_none(self) -> None:
        assert not followed(wrote_by(UNKNOWN), [closed_by(UNKNOWN)])
        assert not followed(Writers(), [closed_by(RANK0)])


def test_a_removal_is_under_way_while_who_began_it_lives() -> None:
    writers = closed_by(RANK0, RANK1)
    assert removal(writers) is Removal.NONE
    writers.removed(RANK0)
    writers.ended(RANK1, killed=True)
    assert removal(writers) is Removal.UNDER_WAY
    assert removal(writers, {RANK0.pid}) is Removal.NONE, "who asks for a flush has done with it"
    writers.ended(RANK0, killed=False)
    assert removal(writers) is Removal.NONE


def test_a_removal_whose_process_was_killed_is_cut_off_until_it_is_written_again() -> None:
    writers = closed_by(RANK0)
    writers.removed(RANK0)
    writers.removed(UNKNOWN)
    assert removal(writers, {RANK0.pid, UNKNOWN.pid}) is Removal.UNDER_WAY
    writers.ended(RANK0, killed=True)
    assert removal(writers) is Removal.CUT_OFF
    writers.written_again()
    assert removal(writers) is Removal.NONE
    assert writers.who_removed() == frozenset()


def test_a_marker_is_older_than_what_one_who_did_not_end_well_wrote_over() -> None:
    writers = closed_by(RANK0, RANK1)
    writers.wrote_over(RANK0)
    assert older_markers(writers) == WORDS
    assert older_markers(writers, {RANK0.pid}) == frozenset(), "who asks for a flush meant it so"
    writers.ended(RANK0, killed=True)
    writers.marked(b"model.safetensors")
    writers.marked(b".metadata")
    writers.marked(POINTER)
    assert older_markers(writers) == WORDS - {b".metadata", POINTER}
    writers.ended(RANK0, killed=False)
    assert older_markers(writers) == frozenset()
