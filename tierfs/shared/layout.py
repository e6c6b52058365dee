"""The names that tierfs itself uses on the shared tier. docs/FORMAT.md is their description."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tierfs.model import Name, ObjectId

CONTROL = b".tierfs"
"""Directory of tierfs in the root of the shared tier; root only."""
STAGING_PREFIX = b".staging_"
"""Reserved for what is not published yet, in any directory."""
ID_FILE = b"id"
NODES = b"nodes"
STAGING = b"staging"
SPILLED = b"spilled"
"""In the staging area of a member: objects for which its local tier had no room."""
SPILLED_OBJECTS = b"objects"
DRIVE_FAILED = b"drive-failed"
"""In the staging area of a member: its journal has missed what was committed since."""
MEMBER_FILE = b"member.json"
GROUPS = b"groups"
TRASH = b"trash"
QUARANTINE = b"quarantine"
MANIFEST = b"manifest"
WHY_FILE = b"why.json"
"""In an entry of the quarantine: where its content came from, and why it is there."""
CONTENT = b"content"
TRASH_PATH = CONTROL + b"/" + TRASH
RETIRED_PREFIX = b"old-"
FORMAT_VERSION = 1
PROBE_FILES = (b"a", b"b", b"c")

XATTR_PREFIX = b"user.tierfs."
XATTR_ID = b"user.tierfs.id"
"""On a directory: its directory id, 16 hexadecimal digits."""
XATTR_DIGEST = b"user.tierfs.digest"
"""On a file: the digest that was verified when it was sent. Information, never evidence."""
XATTR_SHA256 = b"user.tierfs.sha256"
"""On a file: the SHA-256 of its content as a whole, 64 hexadecimal digits, where that is wanted."""
SUMS = b"SHA256SUMS"
XATTR_SUMS = b"user.tierfs.sums"
"""On a file `SUMS`: tierfs has made it."""

_CARRIED = (b"user.", b"trusted.", b"system.posix_acl_", b"security.capability")
_NOT_CARRIED = (XATTR_PREFIX, b"trusted.SGI_ACL_")
_GENERATION = re.compile(rb"(\d{8})-[0-9a-f]{8}")
_STAGED = re.compile(rb"\d+-.*|beside-\d+", re.DOTALL)
_NAME_BYTES = 200
_DOT = ord(".")
_OWN = re.compile(
    rb"\.staging_(?:[0-9a-f]{32}_\d+|probe_[0-9a-f]{32}_[0-9a-f]+|trash_[0-9a-f]{16}(?:-\d+)?"
    rb"|quarantine_\d+-[0-9a-f]{8})"
)
_ID = re.compile(rb"[0-9a-f]{16}")
_RECORD = re.compile(rb"(\d{4,})\.json")
_LINKED = re.compile(rb"linked-(\d{4,})")
_WRITER = re.compile(rb"writer-[0-9a-f]{32}")
_TRASHED = re.compile(rb"([0-9a-f]{16})(?:-(\d{4,}))?")
_QUARANTINED = re.compile(rb"(\d+)-[0-9a-f]{8}")


def hidden(path: bytes, name: Name) -> bool:
    """Whether `name` in the directory `path` is tierfs' own and not shown by any mount."""
    return name.startswith(STAGING_PREFIX) or private(path, name)


def hidden_among(path: bytes, names: Iterable[Name]) -> list[Name]:
    """Those of `names` that are `hidden` in `path`."""
    if path == CONTROL or path.startswith(CONTROL + b"/"):
        return [name for name in names if hidden(path, name)]
    # elsewhere all that is hidden begins with a dot
    return [name for name in names if name[0] == _DOT and hidden(path, name)]


def private(path: bytes, name: Name) -> bool:
    """Whether no op of the journal may ever concern `name` in the directory `path`.

    Unsealed checkpoints are hidden and ops concern them, and what is emptied in the trash.
    """
    if path == CONTROL or path.startswith(CONTROL + b"/"):
        return not (path == TRASH_PATH or path.startswith(TRASH_PATH + b"/"))
    if not path and name == CONTROL:
        return True
    own = _OWN.fullmatch(name)
    return own is not None and not name.startswith(STAGING_PREFIX + b"trash_")


def staging_name(name: Name) -> Name:
    """The name under which the checkpoint `name` stands beside its final name until it is whole."""
    return STAGING_PREFIX + name


def unstaged_name(name: Name) -> Name | None:
    """The final name of the checkpoint that is staged as `name`; None for any other name."""
    if not name.startswith(STAGING_PREFIX) or _OWN.fullmatch(name) is not None:
        return None
    return name[len(STAGING_PREFIX) :] or None


def record_name(number: int) -> Name:
    """The file in ``.tierfs/groups/ID`` that holds state record `number`."""
    return b"%04d.json" % number


def record_number(name: Name) -> int | None:
    """The number of the state record in the file `name`; None if it is no such file."""
    match = _RECORD.fullmatch(name)
    return int(match[1]) if match else None


def linked_name(generation: int) -> Name:
    """The file in ``.tierfs/groups/ID`` that lists what of `generation` the next one shares."""
    return b"linked-%04d" % generation


def writer_name(member: str) -> Name:
    """The file in ``.tierfs/groups/ID`` that `member` changes while it takes part."""
    return b"writer-%s" % member.encode()


def is_writer(name: Name) -> bool:
    """Whether that is the name of such a file."""
    return _WRITER.fullmatch(name) is not None


def is_group_file(name: Name) -> bool:
    """Whether tierfs gave the name to a file in ``.tierfs/groups/ID``."""
    known = _RECORD.fullmatch(name) or _LINKED.fullmatch(name) or is_writer(name)
    return name == MANIFEST or bool(known)


def superseded_name(group: ObjectId, generation: int) -> Name:
    """The name in the trash of an older generation of the checkpoint `group`."""
    return b"%016x-%04d" % (group, generation)


def trashed(name: Name) -> tuple[ObjectId, int | None] | None:
    """The checkpoint in the trash under `name`, and which older generation of it, if one."""
    match = _TRASHED.fullmatch(name)
    if match is None:
        return None
    return ObjectId(int(match[1], 16)), int(match[2]) if match[2] else None


def trash_beside(name: Name) -> Name:
    """What the trash calls `name`, in a directory out of which nothing can be renamed (EXDEV)."""
    return STAGING_PREFIX + b"trash_" + name


def quarantine_beside(entry: Name) -> Name:
    """The name of the content of `entry`, in a directory out of which nothing can be renamed."""
    return STAGING_PREFIX + b"quarantine_" + entry


def quarantined_ns(entry: Name) -> int | None:
    """When the quarantine's `entry` was made, in ns since the epoch; None if it is none."""
    match = _QUARANTINED.fullmatch(entry)
    return int(match[1]) if match else None


def is_id(name: Name) -> bool:
    """Whether the name is an object id."""
    return _ID.fullmatch(name) is not None


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
