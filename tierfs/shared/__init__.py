"""The shared tier: finding things there, and bringing things there whole, verified and durable.

Nothing is seen under a final name before it was read back and compared; the rename is the commit.
"""

from tierfs.shared.changes import AttributeChange
from tierfs.shared.groups import GroupState, ManifestLine, Record, Replaced
from tierfs.shared.jobs import FileJob, SharedSettings, Staged
from tierfs.shared.layout import TRASH_PATH, staging_name, unstaged_name
from tierfs.shared.layout import carried as is_carried_xattr
from tierfs.shared.layout import hidden as is_hidden
from tierfs.shared.lookups import Entry
from tierfs.shared.places import Place, Places
from tierfs.shared.presence import BEATS
from tierfs.shared.quarantine import Quarantined
from tierfs.shared.reopen import Rebuilt
from tierfs.shared.tier import SharedTier
from tierfs.shared.trash import Trashed
from tierfs.shared.walk import Found, Incarnation

__all__ = [
    "BEATS",
    "TRASH_PATH",
    "AttributeChange",
    "Entry",
    "FileJob",
    "Found",
    "GroupState",
    "Incarnation",
    "ManifestLine",
    "Place",
    "Places",
    "Quarantined",
    "Rebuilt",
    "Record",
    "Replaced",
    "SharedSettings",
    "SharedTier",
    "Staged",
    "Trashed",
    "is_carried_xattr",
    "is_hidden",
    "staging_name",
    "unstaged_name",
]
