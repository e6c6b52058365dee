"""What ``tierfs set`` takes, and what it refuses."""

from __future__ import annotations

import pytest

from tierfs.config import changed, live_keys, load
from tierfs.config.units import parse_size
from tierfs.errors import ConfigError

SETTINGS = load(None, {"local": "/nvme", "shared": "/nfs", "bwlimit": "10M"})


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("bwlimit=200M", "bwlimit", 200 << 20),
        ("bwlimit = 1.5GiB/s", "bwlimit", 3 << 29),
        ("bwlimit=off", "bwlimit", 0),
        ("bwlimit=0", "bwlimit", 0),
        ('log_level="debug"', "log_level", "debug"),
        ("log_level=debug", "log_level", "debug"),
        ("watermark=0.5", "watermark", 0.5),
        ("open_hold=2min", "open_hold", 120.0),
        ("keep_last=3", "keep_last", 3),
    ],
)
def test_values(word: str, name: str, value: object) -> None:
    assert getattr(changed(SETTINGS, [word]), name) == value


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("bwlimt=1M", "set: unknown key 'bwlimt'; did you mean 'bwlimit'?"),
        ("zzz=1", "set: unknown key 'zzz'; known are transfer_chunks, bwlimit"),
        ("local=/elsewhere", "set: local cannot be changed while mounted"),
        ("bwlimit", "set: 'bwlimit' is not KEY=VALUE"),
        ("bwlimit=fast", 'set: bwlimit = "fast": must be a size'),
        ("watermark=2", "set: watermark = 2: must be a fraction"),
    ],
)
def test_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(SETTINGS, ["keep_last=1", word])
    assert str(caught.value).startswith(said)


def test_none_can_be_changed_that_is_used_only_at_the_mount() -> None:
    assert not {"local", "shared", "node", "supervisor", "passthrough", "digest"} & {*live_keys()}


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64K", 65536), ("1 MiB", 1 << 20), ("1.5GB", 1_500_000_000), ("2t", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1e3", "10 miles", "1Bi"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        parse_size(text)
