"""The tables [[groups]] of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierfs.config import GroupRule, decode, encode, load, read_file
from tierfs.errors import ConfigError

TIERS: dict[str, object] = {"local": "/nvme", "shared": "/nfs"}
TWO = r"""
[[groups]]
pattern = '^model_\d+$'
profile = "dcp"
[[groups]]
pattern = '^step[-_]\d+$'
profile = "none"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tierfs.toml"
    path.write_text(text)
    return path


def test_read_and_handed_over(tmp_path: Path) -> None:
    settings = load(written(tmp_path, TWO), TIERS)
    assert settings.groups == (
        GroupRule(r"^model_\d+$", "dcp"),
        GroupRule(r"^step[-_]\d+$", "none"),
    )
    assert decode(encode(settings)) == settings


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("groups = 3", "must be [[groups]] tables"),
        ('groups = "x"', "must be [[groups]] tables"),
        ("groups = [3]", "entry 1 must be a table"),
        ("[groups]\npattern = '^a$'", "must be [[groups]] tables"),
        ("[[groups]]\npatern = '^a$'", "entry 1: unknown key 'patern'; did you mean 'pattern'?"),
        ("[[groups]]\npattern = '^a$'", "entry 1: profile is not set"),
        ('[[groups]]\nprofile = "dcp"', "entry 1: pattern is not set"),
        (
            "[[groups]]\npattern = '^a$'\nprofile = \"deepsped\"",
            "entry 1: unknown profile 'deepsped'; did you mean 'deepspeed'?",
        ),
        ("[[groups]]\npattern = '^a$'\nprofile = 1", "entry 1: unknown profile 1"),
        ("[[groups]]\npattern = 'a'\nprofile = \"dcp\"", "entry 1: pattern must be a regular"),
        ('[[groups]]\npattern = 1\nprofile = "dcp"', "entry 1: pattern must be a regular"),
        ("[[groups]]\npattern = '^(a$'\nprofile = \"dcp\"", "entry 1: pattern is no regular"),
        (
            "[[groups]]\npattern = '^a$'\nprofile = \"dcp\"\n[[groups]]\n",
            "entry 2: pattern is not set",
        ),
    ],
)
def test_refused(tmp_path: Path, tables: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(written(tmp_path, tables))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
