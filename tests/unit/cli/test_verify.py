"""`tierfs verify --shared` on real files with real digests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tierfs.osio import OS
from tierfs.shared.digest import digest_of_file


def recorded(path: Path, content: bytes, kind: str = "sha256") -> Path:
    """A file as tierfs commits it: with its digest beside the content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with path.open("rb") as file:
        digest = digest_of_file(OS(), file.fileno(), kind)
    os.setxattr(path, "user.tierfs.digest", digest.encode())
    return path


def verify(shared: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tierfs", "verify", "--shared", shared, "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    recorded(tmp_path / "a.bin", os.urandom(5000))
    recorded(tmp_path / "deep" / "b.bin", os.urandom(3 << 20), "xxh3_128")
    recorded(tmp_path / "deep" / "empty", b"")
    (tmp_path / "plain").write_bytes(b"from before tierfs")
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    for own in (".tierfs", "deep/.staging_x"):
        recorded(tmp_path / own / "hidden", b"x").write_bytes(b"unfinished")
    return tmp_path


def test_all_as_recorded(tier: Path) -> None:
    code, report = verify(tier)
    assert code == 0
    assert report["problems"] == []
    assert report["verified_files"] == 3
    assert report["verified_bytes"] == 5000 + (3 << 20)
    assert report["without_digest"] == 3


@pytest.mark.parametrize("where", ["start", "end"])
def test_one_flipped_bit(tier: Path, where: str) -> None:
    victim = tier / "deep" / "b.bin"
    with victim.open("r+b") as file:
        file.seek(0 if where == "start" else victim.stat().st_size - 1)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    code, report = verify(tier)
    assert code == 3
    (problem,) = report["problems"]
    assert problem["path"] == str(victim)
    assert "damaged or changed outside tierfs" in problem["problem"]
    assert verify(tier, "a.bin")[0] == 0
    assert verify(tier, "deep")[0] == 3


def test_cut_file_and_unknown_digest(tier: Path) -> None:
    os.truncate(tier / "a.bin", 4999)
    os.setxattr(tier / "deep" / "empty", "user.tierfs.digest", b"md5:1:00")
    code, report = verify(tier)
    assert code == 3
    assert {Path(p["path"]).name for p in report["problems"]} == {"a.bin", "empty"}


def test_missing_path(tier: Path) -> None:
    code, report = verify(tier, "not/there")
    assert code == 1
    assert "not on the shared tier" in report["error"]
