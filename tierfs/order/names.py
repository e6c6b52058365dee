"""What the name of a file or directory says about its part in a checkpoint.

The patterns are those of the frameworks (DESIGN 5 and 6, FRAMEWORKS a and b), written as shell
patterns and translated once. Every one is anchored at both ends and matches bytes.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import re

_NEGATIVE = "*-unfinished .incomplete *.orbax-checkpoint-tmp* *.reserving-* *_temp"
_TEMPORARY = (
    "*.tmp .tmp?????? *.tmp.* .*.tmp *.tmp[0-9a-f]* *.__lock *.partial *.tempstate[0-9]* "
    "*.dirty *.dirty.pt *.crdownload *~"
)
_COMMIT = (
    ".metadata __[0-9]*.metadata metadata.json integrity.json meta.pt .snapshot_metadata "
    "*.index.json trainer_state.json run_config.yaml train_state.pt training_metadata.json "
    "_METADATA _CHECKPOINT_METADATA commit_success.txt manifest.ocdbt .zmetadata zarr.json .zgroup "
    "*.index saved_model.pb fingerprint.pb _SUCCESS COMMIT* *.done *.complete"
)
_POINTER = (
    "latest latest_universal latest_checkpointed_iteration.txt latest_train_state.pt checkpoint "
    "LATEST LATEST.txt LOWEST_VAL LOWEST_VAL.txt latest.* last.ckpt last-v*.ckpt last.* "
    "best*.ckpt *-last *.symlink"
)
_FLAG = "_SUCCESS COMMIT* *.done *.complete"
_CHECKPOINT = (
    "checkpoint-[0-9]* checkpoint_[0-9]* checkpoint[0-9]* checkpoint_step_[0-9]* "
    "global_step[0-9]* iter_[0-9]* release step-[0-9]* step_[0-9]* step[0-9]* *.ckpt "
    "epoch_*_step_* *--*=*-* *-last weights context ckpt-[0-9]* ckpt_[0-9]* "
    "pytorch_model_fsdp_* optimizer_[0-9]*"
)
_BARE_NUMBER = rb"[0-9]+\Z"


class Role(enum.Enum):
    """The part that a name plays."""

    __hash__ = object.__hash__  # that of Enum is a function of Python

    COMMIT = "commit"  # makes the directory that holds it a whole checkpoint
    POINTER = "pointer"  # leads to a checkpoint
    NEGATIVE = "negative"  # there: what it covers is not whole
    TEMPORARY = "temporary"  # will be renamed or removed soon
    NONE = "none"


def _compile(patterns: str, *more: bytes) -> re.Pattern[bytes]:
    """One expression for all shell `patterns` (separated by blanks) and the expressions `more`."""
    translated = [fnmatch.translate(pattern).encode() for pattern in patterns.split()]
    return re.compile(b"|".join([*translated, *more]))


# The first that matches counts: `.metadata.tmp` is no marker yet, `latest-unfinished` no pointer.
_ROLES = (
    (_compile(_NEGATIVE), Role.NEGATIVE),
    (_compile(_TEMPORARY), Role.TEMPORARY),
    (_compile(_COMMIT), Role.COMMIT),
    (_compile(_POINTER), Role.POINTER),
)
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
"""To the patterns above one digit is like another: files that differ in their numbers alone, as
nearly all of a directory do, are looked at once."""
_CHECKPOINT_NAMES = _compile(_CHECKPOINT, _BARE_NUMBER)
_FLAG_NAMES = _compile(_FLAG)


def role(name: bytes) -> Role:
    """The role of `name`, one component of a path."""
    return _role(name.translate(_DIGITS))


@functools.lru_cache(maxsize=8192)
def _role(name: bytes) -> Role:
    for pattern, found in _ROLES:
        if pattern.match(name):
            return found
    return Role.NONE


def is_checkpoint(name: bytes) -> bool:
    """Whether a directory called `name` counts as a checkpoint.

    Wide on purpose, bare numbers (Orbax) included: a cover that is too wide costs only waiting.
    """
    return _is_checkpoint(name.translate(_DIGITS))


@functools.lru_cache(maxsize=8192)
def _is_checkpoint(name: bytes) -> bool:
    return _CHECKPOINT_NAMES.match(name) is not None


def is_flag(name: bytes) -> bool:
    """Whether `name` is a commit name that carries no content: only a small file can be one.

    Their patterns are wide enough to meet data files (`COMMITTED_TEXTS.parquet`, `shard.done`).
    """
    return _FLAG_NAMES.match(name) is not None


def is_scratch_directory(name: bytes) -> bool:
    """Whether files in a directory called `name` are temporary whatever their own name (TF)."""
    return name.endswith(b"_temp")


def negative_stem(name: bytes) -> bytes | None:
    """The sibling that the negative file `name` speaks of; None: of its own directory.

    >>> negative_stem(b"step_5-unfinished")
    b'step_5'
    """
    stem = name.removesuffix(b"-unfinished")
    return stem if stem != name else None


def is_negative_file(name: bytes) -> bool:
    """Whether `name` is a negative name that files have (the other ones are directories)."""
    return name == b".incomplete" or negative_stem(name) is not None
