"""Roles and checkpoint names, with the names that the frameworks really use."""

from __future__ import annotations

import pytest

from tierfs.order import names
from tierfs.order.names import Role

ROLES = {
    Role.COMMIT: """.metadata __0.metadata __12.metadata metadata.json integrity.json meta.pt
        .snapshot_metadata model.safetensors.index.json trainer_state.json run_config.yaml
        train_state.pt training_metadata.json _METADATA _CHECKPOINT_METADATA commit_success.txt
        manifest.ocdbt .zmetadata zarr.json .zgroup ckpt-4.index saved_model.pb fingerprint.pb
        _SUCCESS COMMITTED step_4.done step_4.complete""",
    Role.POINTER: """latest latest_universal latest_checkpointed_iteration.txt latest_train_state.pt
        checkpoint LATEST LATEST.txt LOWEST_VAL LOWEST_VAL.txt latest.pt last.ckpt last-v1.ckpt
        last.pt best-model.ckpt best.ckpt model--val_loss=0.1-last run.symlink""",
    Role.NEGATIVE: """step_5-unfinished .incomplete 3.orbax-checkpoint-tmp
        3.orbax-checkpoint-tmp-1700000000 epoch_0_step_9.reserving-1f2e ckpt-1_temp""",
    Role.TEMPORARY: """model.pt.tmp .tmpAb3_xZ .metadata.tmp x.tmp.12 .LATEST.0f3a.tmp
        checkpoint.tmp0a1b manifest.ocdbt.__lock c0.0f.partial part-00000.tempstate123 x.dirty
        iter_0000004_0_local.dirty.pt model.crdownload notes~ __0.metadata.tmp""",
    Role.NONE: """__0_0.distcp model.safetensors model-00001-of-00002.safetensors optimizer.pt
        mp_rank_00_model_states.pt ckpt-4.data-00000-of-00001 metadata.json.bak xlatest latest2
        my.metadatas .tmpAb3_x .tmpAb3_xZy unfinished trainer_state.jsonl checkpoint-4 epoch.ckpt
        COMMI a.doner""",
}

CHECKPOINTS = """checkpoint-500 checkpoint_3 checkpoint7 checkpoint_step_20 global_step10
    iter_0000010 release step-4 step_4 step4 12 0
    epoch=1-step=20.ckpt epoch=3.ckpt any.ckpt epoch_1_step_2
    model--val_loss=1.5-epoch=2 x-last weights context ckpt-1 ckpt_1 pytorch_model_fsdp_0
    optimizer_0"""
NO_CHECKPOINTS = """checkpoints checkpoint my-checkpoint-4 runs iter_ 3.orbax-checkpoint-tmp 12a
    global_step step-x optimizer weights2 epoch_1"""


@pytest.mark.parametrize(
    ("name", "role"), [(name, role) for role, text in ROLES.items() for name in text.split()]
)
def test_role(name: str, role: Role) -> None:
    assert names.role(name.encode()) is role


@pytest.mark.parametrize("name", CHECKPOINTS.split())
def test_checkpoint(name: str) -> None:
    assert names.is_checkpoint(name.encode())


@pytest.mark.parametrize("name", NO_CHECKPOINTS.split())
def test_no_checkpoint(name: str) -> None:
    assert not names.is_checkpoint(name.encode())


def test_names_are_bytes_of_any_kind() -> None:
    assert names.role(b"latest\n") is Role.NONE
    assert names.role(b"a\nb.done") is Role.COMMIT
    assert names.role(b"\xff\xfe.tmp") is Role.TEMPORARY
    assert not names.is_checkpoint(b"12\n")


def test_negative_stem() -> None:
    assert names.negative_stem(b"step_5-unfinished") == b"step_5"
    assert names.negative_stem(b".incomplete") is None
    assert names.is_negative_file(b".incomplete")
    assert not names.is_negative_file(b"3.orbax-checkpoint-tmp")


def test_no_pattern_tells_one_digit_from_another() -> None:
    """Roles are looked up for all names at once that differ in their digits alone."""
    patterns = " ".join(
        (names._NEGATIVE, names._TEMPORARY, names._COMMIT, names._POINTER, names._CHECKPOINT)
    )
    for classes in ("[0-9]", "[0-9a-f]"):
        patterns = patterns.replace(classes, "")
    assert not set(patterns) & set("0123456789[]")
