"""A path that the kernel walks while another node gives its name to one file after the other."""

from __future__ import annotations

import os
import time
from functools import partial

from tests.behaviour.calls import error_of
from tests.behaviour.direct import CALLER, Direct
from tierfs.kernel.answers import Answers, Entry
from tierfs.namespace.finding.told import SECONDS
from tierfs.namespace.overlay.tree import ROOT_INO


def test_a_file_replaced_elsewhere_since_it_was_looked_up_is_what_the_lookup_said(
    direct: Direct,
) -> None:
    """The kernel looks up once more after ESTALE; the next answer must not be that again."""
    direct.mkdir("d")
    direct.settle()
    file, other = direct.shared / "d" / "f", direct.shared / "other"
    answers = Answers(direct.fs)

    def replace(text: str) -> None:
        other.write_text(text)
        other.rename(file)

    async def look(parent: int, name: bytes) -> Entry:
        return await answers.lookup(parent, name, os.getpid())

    replace("1")
    parent = direct.inode("d")
    first = direct.run(look, parent, b"f")
    replace("22")
    told = direct.run(answers.getattr, first.node.ino)
    assert (told.attributes.size, told.attr_seconds) == (1, 0.0)
    second = direct.run(look, parent, b"f")
    assert second.node is not first.node
    assert second.attributes.size == 2
    file.unlink()
    assert direct.run(answers.getattr, second.node.ino).attributes == second.attributes
    time.sleep(SECONDS)
    assert error_of(direct.run, answers.getattr, second.node.ino) == "ESTALE"
    for entry in (first, second):
        direct.run_sync(partial(direct.fs.forget, entry.node.ino, 1))


def test_a_file_that_is_there_when_it_is_to_be_made_is_opened_if_it_need_not_be_new(
    direct: Direct,
) -> None:
    """A worker that was killed had told that it is gone. ESTALE has the kernel look again."""
    answers = Answers(direct.fs)

    def create(flags: int) -> None:
        flags |= os.O_CREAT | os.O_WRONLY
        direct.run(answers.create, None, ROOT_INO, b"f", 0o644, flags, CALLER)

    fd = direct.open("f", os.O_CREAT | os.O_WRONLY)
    assert error_of(create, 0) == "ESTALE"
    assert error_of(create, os.O_EXCL) == "EEXIST"
    direct.close(fd)
