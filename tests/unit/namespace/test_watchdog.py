"""Which requests are named, where, and that each is named once."""

from __future__ import annotations

import logging
import time

import pytest

from tierfs.model import ROOT, Kind, ObjectId
from tierfs.namespace.overlay.nodes import Content, LocalObject
from tierfs.namespace.overlay.tree import ROOT_INO, Tree
from tierfs.namespace.watchdog import HANGS_SECONDS, LOGGED_SECONDS, Watchdog


@pytest.fixture
def tree() -> Tree:
    return Tree(
        root_inode=128, on_directories_gone=lambda gone: None, on_directory_moved=lambda *_: None
    )


def test_a_request_that_hangs_is_named_once(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = tree.node_of_object(LocalObject(ObjectId(77), Kind.FILE, Content.DATA))
    node.names.add((ROOT, b"model.pt"))
    watchdog = Watchdog(tree, lambda node: False)
    now = time.monotonic()
    watchdog.begun(2, "open", node.ino)
    watchdog.begun(4, "lookup", ROOT_INO, b"shard")
    watchdog.begun(6, "statfs", 999)
    assert watchdog.hanging(now + HANGS_SECONDS / 2) == []
    late = now + LOGGED_SECONDS + 1
    found = {(each.operation, each.path) for each in watchdog.hanging(late)}
    assert found == {("open", b"model.pt"), ("lookup", b"shard"), ("statfs", b"?")}
    watchdog.look(late)
    watchdog.look(late + 100)
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert any("open of /model.pt" in warning for warning in warnings)
    for unique in (2, 4, 6):
        watchdog.ended(unique)
    assert watchdog.idle
    assert len([each for each in caplog.records if "answered after all" in each.message]) == 3


def test_a_commit_that_takes_long_is_no_hang_before_it_stands_still(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = tree.node_of_object(LocalObject(ObjectId(77), Kind.FILE, Content.DATA))
    node.names.add((ROOT, b"model.pt"))
    sending = True
    watchdog = Watchdog(tree, lambda asked: sending and asked is node)
    late = time.monotonic() + LOGGED_SECONDS + 1
    watchdog.begun(2, "flush", node.ino)
    watchdog.look(late)
    watchdog.look(late + 100)
    told = [(each.levelno, each.message) for each in caplog.records]
    assert [level for level, _ in told] == [logging.INFO]
    assert "flush of /model.pt waits for its commit" in told[0][1]
    sending = False
    watchdog.look(late + 200)
    assert caplog.records[-1].levelno == logging.WARNING
    assert "hangs: flush of /model.pt" in caplog.records[-1].message
