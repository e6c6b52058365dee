"""Which checkpoints that a job removes before they are sealed were finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierfs.groups import UNKNOWN, Process, Removed, Writers, is_finished, may_be_finished

JOB, OTHER, SHELL = Process(1, 10), Process(2, 20), Process(3, 30)
STATE = frozenset({b"model.safetensors", b"optimizer.bin"})
TRAINER = frozenset({b"model.safetensors", b"trainer_state.json"})


def by(*processes: Process) -> Writers:
    writers = Writers()
    for each in processes:
        writers.closed(each)
    return writers


SAVED = Removed(
    profile="accelerate", names=STATE, writers=by(JOB), remover=JOB, quiet_seconds=0.1, settle=30.0,
    before=STATE,
)  # fmt: skip


def test_the_same_files_as_in_the_one_before() -> None:
    assert is_finished(SAVED)
    assert not is_finished(replace(SAVED, before=None))
    assert not is_finished(replace(SAVED, names=frozenset({b"model.safetensors"})))
    assert not is_finished(replace(SAVED, names=STATE | {b"more"}))


def test_left_in_peace_or_marked() -> None:
    assert is_finished(replace(SAVED, before=None, quiet_seconds=30.0))
    trainer = replace(SAVED, profile="hf-trainer", names=TRAINER, before=None)
    assert is_finished(trainer)
    assert not is_finished(replace(trainer, names=frozenset({b"model.safetensors"})))


@pytest.mark.parametrize(
    "names", [frozenset(), frozenset({b"optimizer.pt", b"trainer_state.json"})]
)
def test_what_its_profile_requires_is_there(names: frozenset[bytes]) -> None:
    removed = replace(SAVED, profile="hf-trainer", names=names, before=names, quiet_seconds=99.0)
    assert not may_be_finished(removed)
    assert not is_finished(removed)


def test_who_removes_it_wrote_it() -> None:
    assert not is_finished(replace(SAVED, remover=SHELL))
    assert is_finished(replace(SAVED, writers=by(JOB, OTHER), remover=OTHER))


def test_all_who_wrote_it_came_to_an_end_with_it() -> None:
    open_still = by(JOB)
    open_still.wrote(OTHER)
    assert not is_finished(replace(SAVED, writers=open_still))
    killed = by(JOB, OTHER)
    killed.ended(OTHER, killed=True)
    assert not is_finished(replace(SAVED, writers=killed))
    assert not is_finished(replace(SAVED, writers=by(JOB, UNKNOWN)))
    ended = by(JOB, OTHER)
    ended.ended(OTHER, killed=False)
    assert is_finished(replace(SAVED, writers=ended))
