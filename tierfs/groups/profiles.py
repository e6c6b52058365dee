"""What makes a checkpoint of each framework whole: the table of DESIGN 6 as data.

The names are those that the frameworks really write (FRAMEWORKS 1 to 10). A pattern is a shell
pattern for one name at the top of the checkpoint; with ``/`` at its end it stands for any file
below a directory of that name; ``**`` is any file anywhere.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

ANYTHING = "**"
_NOTHING = r"(?!)"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a whole checkpoint holds: a file that matches one of `patterns`.

    Attributes:
        label: what people read when it is missing.
    """

    label: str
    patterns: tuple[str, ...]

    def met_by(self, names: Iterable[bytes]) -> bool:
        """Whether one of the relative paths `names` is it."""
        return any(matches_any(self.patterns, name) for name in names)


@dataclass(frozen=True, slots=True)
class Profile:
    """One row of the table.

    Attributes:
        typical: the profile holds once a file of such a name is there.
        required: without them only ``tierfs commit`` seals.
        end_marker: the file that the framework writes last; "" where there is none.
        pointer: the name beside the checkpoint that the framework writes last; "" likewise.
        indexed: every shard that an index file names is required too.
        same_names: the pointer can be ahead of the files of other ranks (ZeRO-1 and 2 have no
            barrier before it). It counts at once only when the names are those of the newest
            sealed sibling, else once nothing changed for the time of settling.
    """

    name: str
    required: tuple[Need, ...]
    typical: tuple[str, ...] = ()
    end_marker: str = ""
    pointer: str = ""
    indexed: bool = False
    same_names: bool = False


def _name(name: str) -> Need:
    return Need(name, (name,))


_SOMETHING = (Need("at least one file", (ANYTHING,)),)
_WEIGHTS = (
    "model*.safetensors", "pytorch_model*.bin", "adapter_model*", "pytorch_model_fsdp_*/",
    "global_step*/",
)  # fmt: skip
_MODEL_STATES = "*mp_rank_*_model_states.pt"  # ZeRO-3 puts `zero_pp_rank_R_` before it

OTHERS = Profile("others", _SOMETHING)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "hf-trainer",
            (Need(f"any weights ({', '.join(_WEIGHTS)})", _WEIGHTS),),
            # Not optimizer.pt or config.json: many loops without a Trainer write them, beside
            # weights of another name.
            typical=(
                *_WEIGHTS, "*.safetensors.index.json", "pytorch_model*.bin.index.json",
                "trainer_state.json", "training_args.bin", "rng_state_[0-9]*.pth",
                "adapter_config.json",
            ),
            end_marker="trainer_state.json",
            indexed=True,
        ),
        Profile(
            "dcp",
            (_name(".metadata"),),
            typical=("*.distcp", ".metadata"),
            end_marker=".metadata",
        ),
        Profile(
            "lightning-sharded",
            (_name(".metadata"), _name("meta.pt")),
            typical=("*.distcp", ".metadata", "meta.pt"),
            end_marker="meta.pt",
        ),
        Profile(
            "megatron",
            (Need("metadata.json or mp_rank_*/", ("metadata.json", "mp_rank_*/")),),
            typical=("metadata.json", "mp_rank_*/", "common.pt", "*.distcp", ".metadata"),
            pointer="latest_checkpointed_iteration.txt",
        ),
        Profile(
            "deepspeed",
            (Need(_MODEL_STATES, (_MODEL_STATES,)),),
            typical=("*_model_states.pt", "*_optim_states.pt", "*-model_states.pt"),
            pointer="latest",
            same_names=True,
        ),
        Profile("accelerate", _SOMETHING),
        Profile("checkpoint_step", _SOMETHING),
        OTHERS,
    )
}  # fmt: skip
"""Every profile by its name."""


END_MARKERS = frozenset(p.end_marker.encode() for p in PROFILES.values() if p.end_marker)
"""What calls some checkpoint whole: without it, it is none any more."""


def in_force(proposed: str, names: Iterable[bytes]) -> Profile:
    """The profile of a checkpoint whose name proposes `proposed` and that holds `names`.

    That one once one of its typical names is there; a sharded checkpoint of torch is told by its
    own names under any other; else the last row of the table.
    """
    paths = tuple(names)
    profile = PROFILES[proposed]
    if profile.name != "dcp" and any(matches_any(profile.typical, path) for path in paths):
        return profile
    if any(matches_any(PROFILES["dcp"].typical, path) for path in paths):
        return PROFILES["lightning-sharded" if b"meta.pt" in paths else "dcp"]
    return OTHERS if profile.typical else profile


def matches_any(patterns: tuple[str, ...], path: bytes) -> bool:
    """Whether the relative `path` is of one of `patterns` (see the module)."""
    files, directories = _compiled(patterns)
    top, slash, _ = path.partition(b"/")
    return ANYTHING in patterns or (directories if slash else files).match(top) is not None


@functools.lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """(expression of the files, of the directories) that `patterns` mean."""
    names = [pattern for pattern in patterns if not pattern.endswith("/")]
    directories = [pattern.removesuffix("/") for pattern in patterns if pattern.endswith("/")]
    return _any_of(names), _any_of(directories)


def _any_of(patterns: list[str]) -> re.Pattern[bytes]:
    translated = [fnmatch.translate(pattern) for pattern in patterns]
    return re.compile("|".join(translated or [_NOTHING]).encode())
