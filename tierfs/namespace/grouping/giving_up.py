"""A published checkpoint that was written over by processes of which the last one was killed.

What they left of it is given up, so that the mount shows what is published: another one could
resume from files of two saves. It is sent before, and goes to quarantine
(docs/decisions/0029-what-a-killed-job-wrote-over.md). Not given up is what is whole, or what
somebody may still call so.
"""

from __future__ import annotations

import logging
import os

from tierfs.groups import WORDS, Decision, Facts, State, Verdict, followed, older_markers
from tierfs.model import Mark, Op, Reopen
from tierfs.namespace.changing.decisions import Decisions
from tierfs.namespace.core import Core
from tierfs.namespace.grouping.group import Group

log = logging.getLogger(__name__)


class GivingUp:
    """Decides it, and issues the op. Synchronous."""

    def __init__(self, core: Core, decisions: Decisions) -> None:
        self._core = core
        self._decisions = decisions

    def at_once(self, group: Group) -> bool:
        """Gives `group` up if it is left behind, and nothing said in it can call it whole.

        True: that is pending from now on.
        """
        if group.seal is not None:
            return False
        return self._is_left(group) and not self._may_be_whole(group) and self._issue(group)

    def judged(self, group: Group, facts: Facts, verdict: Verdict) -> bool:
        """The same of one that was looked at when all that is closed in it was committed."""
        waits = verdict.will_seal or facts.open_files or facts.pending or facts.doubtful
        hopeless = verdict.decision is not Decision.SEAL and not waits and not facts.busy
        return hopeless and self._is_left(group) and self._issue(group)

    def _is_left(self, group: Group) -> bool:
        """Whether dead writers left `group`, the next generation of one that is sealed, and it is
        not for somebody else to decide what becomes of it.
        """
        core, record, writers = self._core, group.record, group.writers
        if record.older is None or record.expect is not None or group.stays:
            return False
        if not core.groups.is_abandoned(group) or core.backlog.open_files(group.id):
            return False
        if writers.who_removed() - writers.processes(State.KILLED):
            return False  # what was removed on purpose would be there again
        return all(op.mark is Mark.TORN for op in self._marked(group))

    def _may_be_whole(self, group: Group) -> bool:
        """Whether a word was said after what was written over, or its writers went on."""
        newer = [each.writers for each in self._core.groups.newer(group)]
        return bool(WORDS - older_markers(group.writers)) or followed(group.writers, newer)

    def _issue(self, group: Group) -> bool:
        core = self._core
        name = os.fsdecode(b"/".join(core.tree.path(group.id)))
        log.info("checkpoint %s: is as it was published: who wrote it over was killed", name)
        with core.journal.together():
            for op in self._marked(group):
                self._decisions.accept(op)  # it goes where the others go
            core.backlog.release_holds(group.id)  # nobody gives a temporary file its name any more
            number = core.journal.next_number()
            group.seal = core.groups.reopen(group.id, Reopen.GIVEN_UP, number)
        return True

    def _marked(self, group: Group) -> list[Op]:
        return [op for op in self._core.backlog.marked(group.id) if not op.log]
