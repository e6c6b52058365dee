"""What the kernel forgets while it uses something that hangs together with it."""

from __future__ import annotations

import functools
import os

import pytest

from tests.behaviour.direct import Direct


@pytest.mark.parametrize("use", ["read", "written", "linked"])
def test_a_file_goes_on_when_the_directory_of_a_further_name_is_forgotten(
    direct: Direct, use: str
) -> None:
    """The kernel keeps the directory by which it has the file, and lets go of others."""
    direct.mkdir("kept")
    direct.write_file("kept/x", b"1")
    others = [f"d{index}" for index in range(8)]
    for each in others:
        direct.mkdir(each)
        direct.link("kept/x", f"{each}/x")
    direct.settle()
    direct.drop_caches()
    fd = direct.open("kept/x", os.O_RDONLY)
    for each in others:
        direct.stat(f"{each}/x")
    for number in [direct.inode(each) for each in others]:
        direct.run_sync(functools.partial(direct.fs.forget, number, direct.counts.pop(number)))
    if use == "linked":
        direct.link("kept/x", "kept/y")
    elif use == "written":
        direct.write_file("kept/x", b"22")
    direct.close(fd)
    direct.settle()
    assert direct.read_file("kept/x") == (direct.shared / "kept/x").read_bytes()
    assert (direct.shared / "kept/x").read_bytes() == (b"22" if use == "written" else b"1")
