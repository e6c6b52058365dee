"""The shared tier: finding things there, and bringing things there whole, verified and durable.

Nothing is seen under a final name before it was read back and compared; the rename is the commit.
"""

from tierfs.shared.changes import AttributeChange
from tierfs.shared.jobs import FileJob, SharedSettings, Staged
from tierfs.shared.layout import carried as is_carried_xattr
from tierfs.shared.layout import hidden as is_hidden
from tierfs.shared.lookups import Entry
from tierfs.shared.places import Place, Places
from tierfs.shared.tier import SharedTier

__all__ = [
    "AttributeChange",
    "Entry",
    "FileJob",
    "Place",
    "Places",
    "SharedSettings",
    "SharedTier",
    "Staged",
    "is_carried_xattr",
    "is_hidden",
]
