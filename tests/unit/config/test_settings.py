"""Every key: its default, its rule, what is said when the rule is broken, and its documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tierfs.config import Settings, decode, encode, keys, load, read_file
from tierfs.config.units import format_duration, format_size, parse_duration
from tierfs.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "packaging" / "tierfs.toml.example"
TIERS: dict[str, object] = {"local": "/nvme", "shared": "/nfs"}


def written(folder: Path, text: str) -> Path:
    path = folder / "tierfs.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    settings = load(None, TIERS)
    assert (settings.local, settings.shared) == (Path("/nvme"), Path("/nfs"))
    assert settings.digest == "sha256"
    assert settings.temporary_hold == 30.0
    assert settings.watermark == 0.85


def test_command_line_over_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'local = "/a"\nshared = "/b"\nnode = "one"\nlinger = "200ms"\n')
    settings = load(file, {"local": "/c", "node": None})
    assert (str(settings.local), str(settings.shared)) == ("/c", "/b")
    assert (settings.node, settings.linger) == ("one", 0.2)


def test_crosses_the_process_border() -> None:
    settings = load(None, {**TIERS, "local": "/bytes-\udcff", "open_hold": "7d"})
    assert decode(encode(settings)) == settings


@pytest.mark.parametrize("text", ["[]", "{", '{"local": 1}'])
def test_damaged_border_text(text: str) -> None:
    with pytest.raises(ConfigError, match="--settings"):
        decode(text)


@pytest.mark.parametrize("missing", ["local", "shared"])
def test_tier_missing(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"--{missing} DIR"):
        load(None, {**TIERS, missing: None})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bwlimit = true", "bwlimit = True: must be bytes a second"),
        ("bwlimit = -1", "bwlimit = -1: must be bytes a second"),
        ('bwlimit = "5 parsecs"', 'bwlimit = "5 parsecs": must be a size'),
        ('bwlimit = "1K"', 'bwlimit = "1K": must be at least 64K a second'),
        ("watermrk = 0.5", "unknown key 'watermrk'; did you mean 'watermark'?"),
        ("zzz = 1", "unknown key 'zzz'; known are local, shared"),
        ("watermark = 1.5", "watermark = 1.5: must be a fraction"),
        ("watermark = true", "watermark = True: must be a fraction"),
        ("watermark = nan", "watermark = nan: must be a fraction"),
        ('digest = "md5"', 'digest = "md5": must be one of sha256, xxh3_128'),
        ("digest = []", "digest = []: must be one of"),
        ("transfer_files = 0", "transfer_files = 0: must be a whole number from 1"),
        ("transfer_files = 2.5", "transfer_files = 2.5: must be a whole number"),
        ('linger = "1 fortnight"', 'linger = "1 fortnight": must be a duration'),
        ("linger = -1", "linger = -1: must lie between"),
        ("linger = inf", "linger = inf: must lie between"),
        ("linger = nan", "linger = nan: must lie between"),
        ('local = "relative"', 'local = "relative": must be an absolute path'),
        ('node = "a/b"', 'node = "a/b": must be printable'),
        ('node = ""', 'node = "": must be a text of 1 to 64'),
        ("= 3", "not a TOML file"),
    ],
)
def test_refused(tmp_path: Path, line: str, said: str) -> None:
    file = written(tmp_path, line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_file(file)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'node = "\xff"')
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_file(path)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "missing")


def example_with_defaults() -> dict[str, Any]:
    """The example with its commented settings switched on."""
    return tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", EXAMPLE.read_text()))


def test_example_shows_every_key_and_its_default(tmp_path: Path) -> None:
    assert example_with_defaults().keys() == keys().keys()
    shown = load(written(tmp_path, re.sub(r"(?m)^# (\w+ = )", r"\1", EXAMPLE.read_text())), {})
    as_is = load(EXAMPLE, {"node": "gpu-17"})
    assert shown == as_is


def test_example_explains_every_key_as_the_code_does() -> None:
    text = " ".join(EXAMPLE.read_text().replace("\n# ", " ").split())
    for name, key in keys().items():
        assert key.metadata["doc"] in text, f"{name}: the example says something else"


def test_settings_cannot_be_changed() -> None:
    settings = load(None, TIERS)
    with pytest.raises(AttributeError):
        settings.linger = 2.0  # type: ignore[misc]
    assert isinstance(settings, Settings)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), (" 1.5 min ", 90), ("1h", 3600), ("7d", 604800), ("200ms", 0.2)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s s", "1e3", "1S"])
def test_durations_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1023 * 1024, "1023 KiB"),
     (1 << 30, "1 GiB"), (int(1.5 * 2**40), "1.5 TiB"), (5 << 50, "5120 TiB")],
)  # fmt: skip
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (12.6, "13 s"), (61, "1 min 1 s"), (3725, "1 h 2 min"), (90000, "1 d 1 h")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
