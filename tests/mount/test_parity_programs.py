"""Ordinary programs on plain XFS first, then on the mount."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import zipfile
from contextlib import closing
from pathlib import Path

from tests.harness.parity import Tree


def shell(script: str, directory: Path) -> str:
    """Run a shell script in `directory`."""
    done = subprocess.run(
        ["sh", "-euc", script], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shell_redirections(tree: Tree) -> None:
    shell("echo one > f; echo two >> f; (echo a; echo b) > g; cat f g > h", tree.path)
    tree.commit_here()
    shell("sort -r h > h.sorted; mv h.sorted h; : > empty; echo three >> f", tree.path)
    assert (tree / "f").read_text() == "one\ntwo\nthree\n"
    assert (tree / "h").read_text() == "two\none\nb\na\n"
    assert (tree / "empty").stat().st_size == 0


def test_archive_round_trip(tree: Tree) -> None:
    shell(
        "mkdir -p src/deep; echo x > src/deep/f; ln -s deep/f src/link; ln src/deep/f src/hard;"
        "chmod 640 src/deep/f; tar cf a.tar src || [ $? = 1 ]",  # 1: ctime moves at the commit
        tree.path,
    )
    tree.commit_here()
    shell("mkdir out; tar xpf a.tar -C out; diff -r src out/src; cp -a src copy", tree.path)
    assert os.readlink(tree / "out" / "src" / "link") == "deep/f"
    assert (tree / "out" / "src" / "hard").stat().st_nlink == 2
    (tree / "a.tar").unlink()  # holds times, and so is never the same twice
    copy, source = ((tree / name / "deep" / "f").stat() for name in ("copy", "src"))
    assert (copy.st_mode, copy.st_mtime_ns) == (source.st_mode, source.st_mtime_ns)


def test_zip_with_patched_headers(tree: Tree) -> None:
    with zipfile.ZipFile(tree / "arrays.npz", "w") as archive:
        for index in range(5):
            archive.writestr(zipfile.ZipInfo(f"arr_{index}"), bytes([index]) * 50_000)
    tree.commit_here()
    with zipfile.ZipFile(tree / "arrays.npz", "a") as archive:
        archive.writestr(zipfile.ZipInfo("late"), b"appended")
    with zipfile.ZipFile(tree / "arrays.npz") as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 6


def test_database_in_wal_mode(tree: Tree) -> None:
    with closing(sqlite3.connect(tree / "db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
        for value in range(100):
            with database:
                database.execute("INSERT INTO t VALUES (?)", (value,))
    tree.commit_here()
    with closing(sqlite3.connect(tree / "db")) as database:
        assert database.execute("SELECT sum(x) FROM t").fetchone() == (4950,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_rename_storm_while_sending(tree: Tree) -> None:
    failures: list[BaseException] = []

    def storm(name: str) -> None:
        try:
            folder = tree / name
            folder.mkdir()
            for version in range(40):
                (folder / f"{version}.tmp").write_bytes(b"%d" % version * 2000)
                os.replace(folder / f"{version}.tmp", folder / f"{version % 4}")
                if version % 10 == 9:
                    os.rename(folder, tree / f"{name}-{version}")
                    folder = tree / f"{name}-{version}"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=storm, args=(f"t{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    if tree.side == "committed":
        tree.pair.writer.flush(tree.path)  # files are open all the time: it cannot end with 0
    for thread in threads:
        thread.join()
    assert failures == []
    for index in range(4):
        for version in range(36, 40):
            content = (tree / f"t{index}-39" / f"{version % 4}").read_bytes()
            assert content == b"%d" % version * 2000
