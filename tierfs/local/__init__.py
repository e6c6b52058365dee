"""The local tier: objects by id, each with content, attributes and what salvage needs to know."""

from tierfs.local.identity import TEST_BOOT_ID, TEST_MOUNT_ID
from tierfs.local.small_files import note_salvage, noted_salvage
from tierfs.local.store import ObjectStore
from tierfs.local.survey import Seen, Survey

__all__ = [
    "TEST_BOOT_ID",
    "TEST_MOUNT_ID",
    "ObjectStore",
    "Seen",
    "Survey",
    "note_salvage",
    "noted_salvage",
]
