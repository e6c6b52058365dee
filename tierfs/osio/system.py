"""The one class that all file system calls go through."""

from tierfs.osio.data import Data
from tierfs.osio.mounts import Mounts
from tierfs.osio.paths import Paths
from tierfs.osio.xattr import Xattrs


class OS(Paths, Data, Xattrs, Mounts):
    """System calls, each labelled with the step of the protocol that it belongs to.

    Every method takes `step` (for example ``"put.fsync"``) first, blocks its thread and raises
    `OSError`. It has no state: one instance may serve all threads.
    """
