"""When a checkpoint is sealed and when not; each rule of DESIGN 6 with its opposite."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tierfs.groups import (
    END_MARKERS,
    POINTER,
    Decision,
    Expect,
    Facts,
    Found,
    Removal,
    Verdict,
    judge,
)

SETTLE = 30.0
HF = "config.json model.safetensors optimizer.pt rng_state_0.pth rng_state_1.pth"
HF_WHOLE = HF + " trainer_state.json"
ZERO = (
    "mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_00_optim_states.pt "
    "zero_pp_rank_1_mp_rank_00_optim_states.pt"
)
WHOLE = {
    "hf-trainer": HF_WHOLE,
    "dcp": "__0_0.distcp __1_0.distcp .metadata",
    "lightning-sharded": "__0_0.distcp .metadata meta.pt",
    "megatron": "__0_0.distcp .metadata metadata.json",
    "deepspeed": ZERO,
    "accelerate": "model.safetensors optimizer.bin random_states_0.pkl",
    "checkpoint_step": "shard_0.bin",
    "others": "anything/at/all",
}
MARKED = ("hf-trainer", "dcp", "lightning-sharded")


def content(names: str, *, stale: str = "") -> dict[bytes, Found]:
    both = [*((name, False) for name in names.split()), *((name, True) for name in stale.split())]
    return {
        name.encode(): Found(size=1, inode=n, stale=is_stale)
        for n, (name, is_stale) in enumerate(both, start=100)
    }


def facts(profile: str, names: str, **known: object) -> Facts:
    base = Facts(profile=profile, content=content(names), settle=SETTLE, quiet_seconds=0.0)
    return replace(base, **known)  # type: ignore[arg-type]


def decided(profile: str, names: str, **known: object) -> Decision:
    return judge(facts(profile, names, **known)).decision


every_profile = pytest.mark.parametrize("profile", WHOLE)


@every_profile
@pytest.mark.parametrize(
    "said",
    [
        {"pointer": True, "sibling_names": frozenset(ZERO.encode().split())},
        {"commit": Expect()},
        {"sibling": True, "followed": True},
        {"flush": True, "writers_gone": True},
    ],
    ids=lambda said: "+".join(said),
)
def test_whole_and_said(profile: str, said: dict[str, object]) -> None:
    assert decided(profile, WHOLE[profile], **said) is Decision.SEAL


@every_profile
def test_quiet_alone_never_seals(profile: str) -> None:
    verdict = judge(facts(profile, WHOLE[profile], quiet_seconds=1e6))
    marked = profile in MARKED
    assert verdict.decision is (Decision.SEAL if marked else Decision.UNSETTLED)
    assert marked or verdict.reason.startswith("nothing says that it is whole: ")
    assert verdict.profile == profile


@every_profile
@pytest.mark.parametrize("said", ["sibling", "flush"])
def test_sibling_and_flush_need_the_marker_or_the_writers(profile: str, said: str) -> None:
    sealed = decided(profile, WHOLE[profile], **{said: True}) is Decision.SEAL
    assert sealed is (profile in MARKED)


@pytest.mark.parametrize("profile", MARKED)
def test_marker_counts_after_settling(profile: str) -> None:
    verdict = judge(facts(profile, WHOLE[profile], quiet_seconds=12.0))
    assert verdict.decision is Decision.WAIT
    assert (verdict.until_seconds, verdict.will_seal) == (18.0, True)
    assert decided(profile, WHOLE[profile], quiet_seconds=SETTLE) is Decision.SEAL


@pytest.mark.parametrize("profile", MARKED)
@pytest.mark.parametrize("said", ["sibling", "flush", "quiet_seconds"])
def test_a_marker_is_no_word_for_what_was_written_over_after_it(profile: str, said: str) -> None:
    known = {"quiet_seconds": 1e6, said: 1e6, "older_markers": END_MARKERS}
    verdict = judge(facts(profile, WHOLE[profile], **known))
    assert verdict.decision is Decision.UNSETTLED
    assert "files of it were written over after" in verdict.reason
    assert decided(profile, WHOLE[profile], followed=True, **known) is Decision.SEAL


@every_profile
def test_a_pointer_is_no_word_for_what_was_written_over_after_it(profile: str) -> None:
    known = {"pointer": True, "quiet_seconds": 1e6, "older_markers": {POINTER, *END_MARKERS}}
    verdict = judge(facts(profile, WHOLE[profile], **known))
    assert verdict.decision is Decision.UNSETTLED
    assert "files of it were written over after the pointer" in verdict.reason
    assert decided(profile, WHOLE[profile], followed=True, **known) is Decision.SEAL


@every_profile
@pytest.mark.parametrize("how", ["doubtful", "busy"])
def test_what_other_nodes_may_go_on_with_is_waited_for(profile: str, how: str) -> None:
    """By a flush, too; `tierfs commit` does not wait for who still writes."""
    known = {**EVERYTHING, "sibling_names": frozenset(ZERO.encode().split()), how: "other"}
    verdict = judge(facts(profile, WHOLE[profile], **known))
    assert (verdict.decision, verdict.will_seal) == (Decision.WAIT, True)
    assert verdict.until_seconds is not None
    committed = decided(profile, WHOLE[profile], **known, commit=Expect())
    assert committed is (Decision.SEAL if how == "busy" else Decision.WAIT)


@every_profile
def test_one_of_which_a_lost_node_has_not_sent_all_needs_a_word(profile: str) -> None:
    known = {**EVERYTHING, "sibling_names": frozenset(ZERO.encode().split()), "lost": "other"}
    verdict = judge(facts(profile, WHOLE[profile], **known))
    assert verdict.decision is Decision.UNSETTLED
    assert "is gone and had not sent all" in verdict.reason
    assert decided(profile, WHOLE[profile], **known, commit=Expect()) is Decision.SEAL


def test_killed_before_the_marker_and_started_again() -> None:
    """A restarted job makes a newer one beside it; what was cut off stays unpublished."""
    verdict = judge(facts("hf-trainer", HF, sibling=True, quiet_seconds=1e6))
    assert verdict.decision is Decision.UNSETTLED
    assert "trainer_state.json is not there" in verdict.reason


@every_profile
def test_what_is_left_of_a_removal_is_not_whole(profile: str) -> None:
    known = {**EVERYTHING, "sibling_names": frozenset(ZERO.encode().split())}
    verdict = judge(facts(profile, WHOLE[profile], removal=Removal.CUT_OFF, **known))
    assert verdict.decision is Decision.UNSETTLED
    assert "was killed" in verdict.reason
    going = {**known, "quiet_seconds": 12.0, "removal": Removal.UNDER_WAY}
    verdict = judge(facts(profile, WHOLE[profile], **going))
    assert (verdict.decision, verdict.until_seconds) == (Decision.WAIT, 18.0)
    assert verdict.will_seal
    known |= {"removal": Removal.UNDER_WAY}
    assert decided(profile, WHOLE[profile], **known) is Decision.SEAL, "it was an edit"
    for each in (Removal.UNDER_WAY, Removal.CUT_OFF):
        assert decided(profile, WHOLE[profile], removal=each, commit=Expect()) is Decision.SEAL


EVERYTHING: dict[str, object] = {
    "pointer": True, "sibling": True, "followed": True, "flush": True, "writers_gone": True,
    "quiet_seconds": 1e6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "names", "missing"),
    [
        ("hf-trainer", "trainer_state.json rng_state_0.pth", "any weights"),
        ("dcp", "__0_0.distcp", ".metadata"),
        ("lightning-sharded", "__0_0.distcp .metadata", "meta.pt"),
        ("lightning-sharded", "__0_0.distcp meta.pt", ".metadata"),
        ("megatron", "__0_0.distcp .metadata", "metadata.json or mp_rank_*/"),
        ("deepspeed", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "*mp_rank_*_model_states.pt"),
        ("checkpoint_step", "", "at least one file"),
    ],
)
def test_missing_names_only_commit_seals(profile: str, names: str, missing: str) -> None:
    verdict = judge(facts(profile, names, **EVERYTHING))
    assert verdict.decision is Decision.UNSETTLED
    assert len(verdict.missing) == 1
    assert verdict.missing[0].startswith(missing)
    assert verdict.missing[0] in verdict.reason
    waiting = judge(facts(profile, names, **{**EVERYTHING, "quiet_seconds": 1.0}))
    assert waiting.decision is Decision.WAIT
    assert not waiting.will_seal, "a flush must not wait for what time alone does not mend"
    committed = judge(facts(profile, names, commit=Expect()))
    assert committed.decision is Decision.SEAL
    assert committed.missing == verdict.missing


@every_profile
@pytest.mark.parametrize("commit", [None, Expect()])
@pytest.mark.parametrize(
    ("obstacle", "decision"),
    [
        ({"open_files": (b"x.pt",)}, Decision.WAIT),
        ({"pending": (b"x.pt",)}, Decision.WAIT),
        ({"negative": b"x.pt-unfinished"}, Decision.UNSETTLED),
        ({"stuck": (b"x.pt",)}, Decision.BROKEN),
    ],
    ids=["open", "pending", "negative", "stuck"],
)
def test_obstacles_hold_whatever_was_said(
    profile: str, obstacle: dict[str, object], decision: Decision, commit: Expect | None
) -> None:
    verdict = judge(facts(profile, WHOLE[profile], **EVERYTHING, **obstacle, commit=commit))
    assert verdict.decision is decision
    assert "x.pt" in verdict.reason
    assert verdict.until_seconds is None


def test_stuck_files_are_named_all() -> None:
    names = tuple(b"%d.bin" % number for number in range(9))
    verdict = judge(facts("others", "a", stuck=names))
    assert verdict.files == tuple(name.decode() for name in names)
    assert verdict.reason == "cannot be committed: 0.bin, 1.bin, 2.bin and 6 more"


def test_names_of_any_bytes_are_shown() -> None:
    assert judge(facts("others", "a", stuck=(b"\xff\n",))).reason.endswith("\\xff\n")


@pytest.mark.parametrize(("count", "decision"), [(2, Decision.SEAL), (3, Decision.UNSETTLED)])
def test_expected_count(count: int, decision: Decision) -> None:
    known = {"commit": Expect(count), "quiet_seconds": SETTLE}
    verdict = judge(facts("others", "a sub/b", **known))
    assert verdict.decision is decision
    assert decision is Decision.SEAL or verdict.reason == "3 files expected, 2 are there"


class TestStale:
    """Files of an earlier generation count for nothing."""

    def test_required(self) -> None:
        found = content("config.json trainer_state.json", stale="model.safetensors")
        verdict = judge(facts("hf-trainer", "", content=found, **EVERYTHING))
        assert verdict.decision is Decision.UNSETTLED
        assert verdict.missing[0].startswith("any weights")

    def test_end_marker(self) -> None:
        found = content(HF, stale="trainer_state.json")
        verdict = judge(facts("hf-trainer", "", content=found, quiet_seconds=1e6, flush=True))
        assert verdict.decision is Decision.UNSETTLED
        assert not verdict.missing

    def test_any_file(self) -> None:
        found = content("", stale="a b")
        assert decided("others", "", content=found, **EVERYTHING) is Decision.UNSETTLED

    def test_count(self) -> None:
        found = content("c", stale="a b")
        assert decided("others", "", content=found, commit=Expect(1)) is Decision.SEAL

    def test_names_of_the_sibling(self) -> None:
        first, *rest = ZERO.split()
        found = content(first, stale=" ".join(rest))
        known = {"pointer": True, "sibling_names": ZERO.encode().split()}
        assert decided("deepspeed", "", content=found, **known) is Decision.WAIT


class TestIndex:
    """Every shard that an index names is required."""

    INDEX = "model.safetensors.index.json"
    SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def verdict(self, text: bytes | None, *names: str, profile: str = "hf-trainer") -> Verdict:
        found = content(" ".join(names))
        found[self.INDEX.encode()] = Found(size=1, inode=1, index=text)
        return judge(facts(profile, "", content=found, pointer=True))

    def text(self) -> bytes:
        weights = {f"layer.{n}": self.SHARDS[n % 2] for n in range(6)}
        return json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}).encode()

    def test_all_there(self) -> None:
        assert self.verdict(self.text(), *self.SHARDS).decision is Decision.SEAL

    def test_one_missing(self) -> None:
        verdict = self.verdict(self.text(), self.SHARDS[0])
        assert verdict.decision is Decision.WAIT
        assert verdict.missing == (f"{self.SHARDS[1]} (named in {self.INDEX})",)

    def test_shards_stand_beside_their_index(self) -> None:
        found = content("model.safetensors sub/" + self.SHARDS[0] + " " + self.SHARDS[1])
        found[b"sub/x.index.json"] = Found(size=1, inode=1, index=self.text())
        verdict = judge(facts("hf-trainer", "", content=found, pointer=True))
        assert verdict.missing == (f"{self.SHARDS[1]} (named in sub/x.index.json)",)

    def test_stale_index_does_not_count(self) -> None:
        found = content(HF_WHOLE)
        found[self.INDEX.encode()] = Found(size=1, inode=1, index=self.text(), stale=True)
        assert decided("hf-trainer", "", content=found, pointer=True) is Decision.SEAL

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"weight_map": 3}', b"\xff"])
    def test_unreadable(self, text: bytes) -> None:
        verdict = self.verdict(text, "model.safetensors")
        assert verdict.missing == (f"a readable {self.INDEX}",)

    def test_too_large_to_be_read(self) -> None:
        assert self.verdict(None, self.SHARDS[0]).decision is Decision.SEAL

    def test_not_of_other_profiles(self) -> None:
        assert self.verdict(b"{", "a", profile="accelerate").decision is Decision.SEAL


class TestDeepSpeed:
    """`latest` may be ahead of the files of other ranks."""

    def test_same_names_at_once(self) -> None:
        names = ZERO.encode().split()
        assert decided("deepspeed", ZERO, pointer=True, sibling_names=names) is Decision.SEAL

    @pytest.mark.parametrize("sibling", [None, [*ZERO.encode().split(), b"more"], []])
    def test_other_names_after_settling(self, sibling: list[bytes] | None) -> None:
        known = {"pointer": True, "sibling_names": sibling, "flush": True}
        verdict = judge(facts("deepspeed", ZERO, quiet_seconds=29.0, **known))
        assert verdict.decision is Decision.WAIT
        assert (verdict.until_seconds, verdict.will_seal) == (1.0, True)
        assert decided("deepspeed", ZERO, quiet_seconds=30.0, **known) is Decision.SEAL

    def test_no_pointer_is_no_word(self) -> None:
        verdict = judge(facts("deepspeed", ZERO, quiet_seconds=1e6))
        assert "no pointer (latest)" in verdict.reason

    def test_pointer_of_megatron_counts_at_once(self) -> None:
        assert decided("megatron", WHOLE["megatron"], pointer=True) is Decision.SEAL


def test_profile_is_told_by_what_is_still_being_written() -> None:
    verdict = judge(facts("dcp", "a.txt", open_files=(b"__0_0.distcp",)))
    assert verdict.profile == "dcp"
    assert verdict.missing == (".metadata",)


def test_time_alone_changes_wait_to_unsettled_once() -> None:
    verdict = judge(facts("others", "a", quiet_seconds=10.0))
    assert (verdict.decision, verdict.until_seconds) == (Decision.WAIT, 20.0)
    later = judge(facts("others", "a", quiet_seconds=30.0))
    assert (later.decision, later.until_seconds) == (Decision.UNSETTLED, None)


def test_what_another_member_says_breaks_it_until_somebody_commits_it() -> None:
    said = {"broken": "lost with its drive", "broken_files": [b"optimizer.pt"], "quiet_seconds": 60}
    verdict = judge(facts("hf-trainer", HF_WHOLE, **said))
    assert verdict.decision is Decision.BROKEN
    assert (verdict.reason, verdict.files) == ("lost with its drive", ("optimizer.pt",))
    assert verdict.until_seconds == SETTLE  # that member may take it back
    assert decided("hf-trainer", HF_WHOLE, **said, commit=Expect()) is Decision.SEAL
