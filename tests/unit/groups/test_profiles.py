"""Which profile counts, told by the files that the frameworks really write."""

from __future__ import annotations

import pytest

from tierfs.groups import PROFILES, in_force
from tierfs.groups.profiles import matches_any


@pytest.mark.parametrize(
    ("proposed", "names", "expected"),
    [
        ("hf-trainer", "", "others"),
        ("hf-trainer", "config.json model.safetensors", "hf-trainer"),
        ("hf-trainer", "model-00001-of-00002.safetensors", "hf-trainer"),
        ("hf-trainer", "pytorch_model_fsdp_0/__0_0.distcp", "hf-trainer"),
        ("hf-trainer", "global_step5/mp_rank_00_model_states.pt", "hf-trainer"),
        ("hf-trainer", "rng_state_1.pth", "hf-trainer"),
        ("hf-trainer", "config.json model.pt optimizer.pt", "others"),
        ("hf-trainer", "unet/model.safetensors random_states_0.pkl", "others"),
        ("hf-trainer", "__0_0.distcp", "dcp"),
        ("hf-trainer", "__0_0.distcp model.safetensors", "hf-trainer"),
        ("dcp", "__0_0.distcp", "dcp"),
        ("dcp", "__0_0.distcp meta.pt", "lightning-sharded"),
        ("dcp", "model.safetensors", "others"),
        ("dcp", "sub/__0_0.distcp", "others"),
        ("lightning-sharded", "__0_0.distcp", "lightning-sharded"),
        ("lightning-sharded", "checkpoint/mp_rank_00_model_states.pt latest", "others"),
        ("megatron", "__0_0.distcp .metadata", "megatron"),
        ("megatron", "mp_rank_00/model_optim_rng.pt", "megatron"),
        ("megatron", "weights.bin", "others"),
        ("deepspeed", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "deepspeed"),
        ("deepspeed", "layer_00-model_states.pt", "deepspeed"),
        ("deepspeed", "model.safetensors", "others"),
        ("accelerate", "model.safetensors random_states_0.pkl", "accelerate"),
        ("checkpoint_step", "a.bin", "checkpoint_step"),
        ("checkpoint_step", "__0_0.distcp a.bin", "dcp"),
        ("others", ".metadata meta.pt", "lightning-sharded"),
    ],
)
def test_in_force(proposed: str, names: str, expected: str) -> None:
    assert in_force(proposed, names.encode().split()).name == expected


@pytest.mark.parametrize(
    ("profile", "names", "met"),
    [
        ("hf-trainer", "model.safetensors", True),
        ("hf-trainer", "adapter_model.safetensors", True),
        ("hf-trainer", "pytorch_model-00001-of-00002.bin", True),
        ("hf-trainer", "pytorch_model_fsdp.bin", True),
        ("hf-trainer", "optimizer_0/__0_0.distcp", False),
        ("hf-trainer", "model.safetensors.index.json", False),
        ("hf-trainer", "pytorch_model.bin.index.json", False),
        ("hf-trainer", "pytorch_model_fsdp_0", False),
        ("hf-trainer", "old/model.safetensors", False),
        ("megatron", "metadata.json", True),
        ("megatron", "mp_rank_00_000/model_optim_rng.pt", True),
        ("megatron", "mp_rank_00", False),
        ("megatron", ".metadata __0_0.distcp common.pt", False),
        ("deepspeed", "mp_rank_00_model_states.pt", True),
        ("deepspeed", "zero_pp_rank_0_mp_rank_00_model_states.pt", True),
        ("deepspeed", "zero_pp_rank_0_mp_rank_00_optim_states.pt", False),
        ("lightning-sharded", ".metadata", False),
        ("lightning-sharded", ".metadata meta.pt", True),
        ("others", "deep/down/x", True),
        ("others", "", False),
    ],
)
def test_required(profile: str, names: str, met: bool) -> None:
    paths = names.encode().split()
    assert all(need.met_by(paths) for need in PROFILES[profile].required) is met


def test_patterns_match_whole_names_of_any_bytes() -> None:
    assert matches_any(("a*",), b"a\n\xff")
    assert not matches_any(("a",), b"a\n")
    assert not matches_any(("a/",), b"a")
    assert not matches_any((), b"a")
