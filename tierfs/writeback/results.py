"""How one attempt at an op ends, apart from an error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tierfs.model import Name, ObjectId
from tierfs.shared import Rebuilt


@dataclass(frozen=True, slots=True)
class Applied:
    """The op is on the shared tier for good.

    Attributes:
        st: what stands under its name now; None of removals.
        other: what stands under the name that it came from, after an exchange.
        before, after: mtimes of the directories whose content it changed.
        adopted: MKDIR: the directory was there, made by somebody else.
        tagged: MKDIR: it carries our id.
        tag: MKDIR: the id that it carries instead.
        stands: where a directory stands now: directory id (None: where it was) and name there.
        rebuilt: the directories of a new generation of a checkpoint.
        xattrs: of a directory that was made or whose xattrs were changed; None: not known.
    """

    st: os.stat_result | None
    before: dict[ObjectId, int] = field(default_factory=dict)
    after: dict[ObjectId, int] = field(default_factory=dict)
    adopted: bool = False
    tagged: bool = False
    tag: ObjectId | None = None
    other: os.stat_result | None = None
    stands: tuple[ObjectId | None, Name] | None = None
    rebuilt: tuple[Rebuilt, ...] = ()
    xattrs: dict[bytes, bytes] | None = None


class NothingToDo(Exception):
    """What the op was to change was changed or removed outside this mount; says how."""


class NotYet(Exception):
    """While the op was prepared its turn went away; it is taken again when it comes back."""


class Held(Exception):
    """A removal would leave nothing whole: it waits outside the order; says why."""
