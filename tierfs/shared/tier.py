"""The shared tier as the rooms above see it."""

from tierfs.shared.changes import Changes
from tierfs.shared.giving_up import GivingUp
from tierfs.shared.mending import Mending
from tierfs.shared.replay import Replay
from tierfs.shared.standing import Standing
from tierfs.shared.sweep import Sweeping
from tierfs.shared.transfer import Transfers


class SharedTier(Transfers, Changes, Replay, GivingUp, Mending, Standing, Sweeping):
    """A directory on a file system that every node mounts.

    A mount calls `probe`, `register`, `retire_old_generations`, then whatever it likes, `sweep`
    at leisure, and `close`. But for `stage_file` everything blocks: call it in a thread, with
    `shared_threads`. Calls are independent of each other and may be made from many threads.
    """
