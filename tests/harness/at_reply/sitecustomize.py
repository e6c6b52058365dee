"""For a daemon under test: it dies once, as it is about to answer a request that changes names.

Python imports this module by itself where its folder is in PYTHONPATH.
"""

import os
import signal

from tierfs.kernel.filter import Filter
from tierfs.kernel.resent import RESENT
from tierfs.kernel.wire import REPLY_HEADER

ARMED = os.environ["TIERFS_TEST_DIE_AT_REPLY"]

send_reply = Filter._reply


def die_or_reply(self: Filter, message: memoryview | bytes) -> None:
    unique = REPLY_HEADER.unpack_from(message)[2] & ~RESENT
    if unique in self._named._unanswered and os.path.exists(ARMED):
        os.unlink(ARMED)
        os.kill(os.getpid(), signal.SIGKILL)
    send_reply(self, message)


Filter._reply = die_or_reply  # type: ignore[method-assign]
