"""Which rule each file of a checkpoint meets, and which pattern its name."""

from __future__ import annotations

import json

from tierfs.config import GroupRule
from tierfs.groups import PROFILES, Found, Patterns, number_of, rules_met

INDEX = b"model.safetensors.index.json"


def test_rules_of_a_trainer_checkpoint() -> None:
    text = json.dumps({"weight_map": {"a": "part-1.bin", "b": "gone.bin"}}).encode()
    content = {
        INDEX: Found(1, 1, index=text),
        b"part-1.bin": Found(1, 2),
        b"model.safetensors": Found(1, 3, stale=True),
        b"trainer_state.json": Found(1, 4),
        b"README": Found(1, 5),
    }
    met = rules_met(PROFILES["hf-trainer"], content)
    assert met[b"README"] == ()
    assert met[b"part-1.bin"] == (f"shard that {INDEX.decode()} names",)
    assert met[b"model.safetensors"] == ("of an earlier run: counts for nothing",)
    assert met[b"trainer_state.json"] == ("end marker", "typical of hf-trainer")
    assert "index of shards" in met[INDEX]


def test_an_end_marker_of_the_generation_before_is_said_to_be_one() -> None:
    met = rules_met(PROFILES["dcp"], {b".metadata": Found(1, 1, linked=True)})
    assert met[b".metadata"] == (
        "required: .metadata", "end marker, of the generation before", "typical of dcp",
    )  # fmt: skip


def test_the_rule_of_a_name() -> None:
    off = GroupRule(r"^iter_\d{7}$", "none")
    patterns = Patterns([off])
    assert patterns.rule_of(b"iter_0000001") is off
    assert patterns.profile_of(b"iter_0000001") is None
    assert patterns.rule_of(b"checkpoint-1").profile == "hf-trainer"  # type: ignore[union-attr]
    assert patterns.rule_of(b"checkpoint-1\n") is None


def test_the_number_orders_names_as_people_do() -> None:
    names = [b"checkpoint-9", b"checkpoint-10", b"epoch=1-step=8.ckpt", b"iter_0000700"]
    assert sorted(names, key=number_of) == [names[2], names[0], names[1], names[3]]
    assert number_of(b"release") == ()
