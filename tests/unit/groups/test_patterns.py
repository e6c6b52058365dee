"""Which names are checkpoints, with the names that the frameworks really use."""

from __future__ import annotations

import pytest

from tierfs.config import PROFILE_NAMES, GroupRule
from tierfs.groups import PROFILES, Patterns

PROPOSED = {
    "hf-trainer": "checkpoint-500 checkpoint-0",
    "accelerate": "checkpoint_3",
    "checkpoint_step": "checkpoint_step_20",
    "deepspeed": "global_step10",
    "megatron": "iter_0000010",
    "dcp": "step-4 step_4",
    "lightning-sharded": "epoch=1-step=20.ckpt epoch=3-val_loss=0.5-step=7.ckpt",
    "others": "epoch_1_step_2",
}
NO_GROUPS = """4 0000010 checkpoint checkpoint- checkpoint5 checkpoints my-checkpoint-4
    checkpoint-4a
    checkpoint-4-unfinished 3.orbax-checkpoint-tmp step-3.orbax-checkpoint-tmp-1700000000 step4
    iter_10 iter_00000010 release global_step global_step5_universal epoch_1_step_2.reserving-1f2e
    epoch=1.ckpt epoch=1-step=2.ckpt.tmp epoch=1-step=20-v1.ckpt last.ckpt ckpt-4 weights
    pytorch_model_fsdp_0 .staging_checkpoint-4"""


@pytest.mark.parametrize(
    ("name", "profile"), [(name, p) for p, text in PROPOSED.items() for name in text.split()]
)
def test_name_proposes_profile(name: str, profile: str) -> None:
    assert Patterns().profile_of(name.encode()) == profile


@pytest.mark.parametrize("name", NO_GROUPS.split())
def test_no_group(name: str) -> None:
    assert Patterns().profile_of(name.encode()) is None


def test_a_name_that_is_too_long_to_be_staged_is_no_checkpoint() -> None:
    longest = "checkpoint-" + "1" * (255 - len(".staging_checkpoint-"))
    assert Patterns().profile_of(longest.encode()) == "hf-trainer"
    assert Patterns().profile_of(f"{longest}1".encode()) is None


@pytest.mark.parametrize(
    "name", [b"checkpoint-4\n", b"\ncheckpoint-4", b"checkpoint-\xff", "step_\u0664".encode(), b""]
)
def test_names_are_bytes_of_any_kind(name: bytes) -> None:
    assert Patterns().profile_of(name) is None


@pytest.mark.parametrize(
    ("path", "top"),
    [
        ("", None),
        ("runs a checkpoints", None),
        ("checkpoint-4", 0),
        ("runs a checkpoint-4 global_step4", 2),
        ("checkpoint-4 pytorch_model_fsdp_0", 0),
        ("step_1 checkpoint-4", 0),
        ("3.orbax-checkpoint-tmp step_1", 1),
    ],
)
def test_topmost(path: str, top: int | None) -> None:
    assert Patterns().top(path.encode().split()) == top


def test_configuration_adds_and_comes_first() -> None:
    patterns = Patterns(
        [
            GroupRule(r"^model_\d+$", "dcp"),
            GroupRule(r"^checkpoint-9\d*$", "others"),
            GroupRule(r"^été_\d+$", "others"),
        ]
    )
    assert patterns.profile_of(b"model_7") == "dcp"
    assert patterns.profile_of("été_1".encode()) == "others"
    assert patterns.profile_of(b"checkpoint-91") == "others"
    assert patterns.profile_of(b"checkpoint-81") == "hf-trainer"


def test_configuration_turns_off() -> None:
    patterns = Patterns([GroupRule(r"^step[-_]\d+$", "none")])
    assert patterns.profile_of(b"step_1") is None
    assert patterns.top([b"step_1", b"checkpoint-4"]) == 1
    everything = Patterns([GroupRule(r"^mine\d+$", "others"), GroupRule("^.*$", "none")])
    assert everything.profile_of(b"mine1") == "others"
    assert everything.profile_of(b"checkpoint-4") is None


def test_every_profile_can_be_configured() -> None:
    assert {*PROFILES, "none"} == set(PROFILE_NAMES)
    assert all(name == profile.name for name, profile in PROFILES.items())
