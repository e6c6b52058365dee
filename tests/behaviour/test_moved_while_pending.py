"""What is pending in a directory that was moved since is asked for, and told of, where it is."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.behaviour.direct import Direct
from tierfs.daemon.report import Report


def pending(direct: Direct, path: str) -> set[str]:
    """What a flush of `path` waits for, by the paths that it is told of."""
    report, top = Report(direct.rooms), direct.rooms.mountpoint
    ops = direct.run(report.ops_under, f"{top}/{path}".rstrip("/"))
    return {report.path_of(op).removeprefix(f"{top}/") for op in ops}


def test_a_flush_finds_what_was_begun_before_its_directory_was_moved(
    make_direct: Callable[..., Direct],
) -> None:
    direct = make_direct()
    for path in ("run", "run/inner", "elsewhere"):
        direct.mkdir(path)
    direct.settle()
    direct.restart(held=True)
    direct.write_file("run/closed", b"before")
    fd = direct.open("run/inner/open", os.O_WRONLY | os.O_CREAT)
    direct.rename("run", "elsewhere/run")
    direct.write(fd, b"after")
    direct.close(fd)
    files = {"elsewhere/run/closed", "elsewhere/run/inner/open"}
    for top in ("elsewhere", "elsewhere/run", ""):
        assert files <= pending(direct, top), top
    for file in files:
        assert pending(direct, file) == {file}
    assert "elsewhere/run/closed" not in pending(direct, "elsewhere/run/inner")
    direct.restart(held=True)
    assert files <= pending(direct, "elsewhere")
    direct.settle()
    assert pending(direct, "elsewhere") == set()
