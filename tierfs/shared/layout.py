"""The names that tierfs itself uses on the shared tier. docs/FORMAT.md is their description."""

from __future__ import annotations

import re

from tierfs.model import Name, ObjectId

CONTROL = b".tierfs"
"""Directory of tierfs in the root of the shared tier; root only."""
STAGING_PREFIX = b".staging_"
"""Reserved for what is not published yet, in any directory."""
ID_FILE = b"id"
NODES = b"nodes"
STAGING = b"staging"
MEMBER_FILE = b"member.json"
RETIRED_PREFIX = b"old-"
FORMAT_VERSION = 1
PROBE_FILES = (b"a", b"b")

XATTR_PREFIX = b"user.tierfs."
XATTR_ID = b"user.tierfs.id"
"""On a directory: its directory id, 16 hexadecimal digits."""
XATTR_DIGEST = b"user.tierfs.digest"
"""On a file: the digest that was verified when it was sent. Information, never evidence."""

_CARRIED = (b"user.", b"trusted.", b"system.posix_acl_", b"security.capability")
_NOT_CARRIED = (XATTR_PREFIX, b"trusted.SGI_ACL_")
_GENERATION = re.compile(rb"(\d{8})-[0-9a-f]{8}")
_STAGED = re.compile(rb"\d+-.*|beside-\d+", re.DOTALL)
_NAME_BYTES = 200


def hidden(path: bytes, name: Name) -> bool:
    """Whether `name` in the directory `path` is tierfs' own and not shown by any mount."""
    return name.startswith(STAGING_PREFIX) or (name == CONTROL and not path)


def carried(name: bytes) -> bool:
    """Whether the xattr `name` is the application's and moves with a file between the tiers.

    Labels of security modules belong to the machine, ``user.tierfs.*`` to the tier, and
    ``trusted.SGI_ACL_*`` is how XFS lists its ACLs a second time.
    """
    return name.startswith(_CARRIED) and not name.startswith(_NOT_CARRIED)


def encode_id(directory: ObjectId) -> bytes:
    """The value of ``user.tierfs.id`` for `directory`."""
    return b"%016x" % directory


def decode_id(value: bytes) -> ObjectId | None:
    """The directory id that `value` stands for; None if it stands for none."""
    try:
        return ObjectId(int(value, 16)) if len(value) == 16 else None
    except ValueError:
        return None


def staged_name(row: int, name: Name) -> Name:
    """The name in staging of what op `row` publishes as `name`, which is shortened."""
    return b"%d-%s" % (row, name[:_NAME_BYTES])


def beside_marker(row: int) -> Name:
    """The name in staging of the symlink that tells where op `row` is staged instead."""
    return b"beside-%d" % row


def beside_name(member: str, row: int) -> Name:
    """The name in the target directory where staging lies on another file system."""
    return b"%s%s_%d" % (STAGING_PREFIX, member.encode(), row)


def probe_prefix(member: str) -> Name:
    """How the directories in the root begin in which `member` tries what the tier can do."""
    return b"%sprobe_%s_" % (STAGING_PREFIX, member.encode())


def is_staged(name: Name) -> bool:
    """Whether tierfs gave the name to something in staging."""
    return _STAGED.fullmatch(name) is not None


def generation_number(name: Name) -> int | None:
    """The number of the generation that a directory in staging, also a retired one, is for."""
    match = _GENERATION.fullmatch(name.removeprefix(RETIRED_PREFIX))
    return int(match[1]) if match else None
