"""Whose directory the local tier is: format version, member id, lock, boot of the last mount."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from typing import Self

from tierfs.errors import TierError, TierInUse
from tierfs.local import small_files
from tierfs.local.reserve import RESERVE
from tierfs.osio import OS
from tierfs.osio.hanging import hangs_on, is_dead

FORMAT_VERSION = b"1"
TEST_BOOT_ID = "TIERFS_TEST_BOOT_ID"
"""Environment variable, for tests alone: stands for this boot, so that a reboot can be acted."""
TEST_MOUNT_ID = "TIERFS_TEST_MOUNT_ID"
"""Environment variable, for tests alone: stands for the mount of the local file system."""

OBJECTS = b"objects"
VERSION, MEMBER, _BOOT, _LOCK = b"VERSION", b"MEMBER", b"BOOT", b"lock"
_ENDING = b"ending"
"""In the lock, behind the process id: the mount of the holder is gone."""
_SETUP = frozenset({OBJECTS, MEMBER, MEMBER + small_files.NEW, VERSION + small_files.NEW, _LOCK})
"""All that an interrupted first mount can have left behind."""
_JOURNAL = frozenset({b"journal.db", b"journal.db-wal", b"journal.db-shm", b"journal.db-journal"})
_OURS = (
    _SETUP | _JOURNAL | {VERSION, _BOOT, _BOOT + small_files.NEW, RESERVE}
    | {small_files.SALVAGED, small_files.SALVAGED + small_files.NEW}
)  # fmt: skip
_LOST = b"journal.db.lost-", b"journal.db-wal.lost-", b"journal.db-shm.lost-"
# Made by mkfs: a directory with nothing else in it counts as empty.
_OF_FILE_SYSTEM = frozenset({b"lost+found"})
_PROBE = b"user.tierfs.probe"


class Identity:
    """The files beside the objects, and the lock.

    Attributes:
        member: random id made with the directory, 32 hex digits.
        boot_changed: another boot, or another mount of the file system, than at the last
            `remember_boot`: what was not synced then may be lost.
    """

    def __init__(self, system: OS, path: str, root: int) -> None:
        """`root` is a descriptor of the directory `path`, and stays the caller's."""
        self._system = system
        self._path = path
        self._root = root
        self._lock = -1
        self._boot = b""
        self.member = ""
        self.boot_changed = False

    def __enter__(self) -> Self:
        """Check the directory, lock it, set it up if it is new. Raises TierError or OSError."""
        self._check()
        self._probe()
        self._take_lock()
        try:
            # Once more: another process may have set it up before we got the lock.
            new = self._check()
            if new:
                self._set_up()
            self._check_private()
            self.member = self._read_member()
            self._boot = self._read_boot()
            remembered = small_files.read(self._system, self._root, _BOOT)
            self.boot_changed = not new and remembered != self._boot
            if new:
                self.remember_boot()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back."""
        self._system.close("local.unlock", self._lock)

    def is_back(self) -> bool:
        """Whether the directory, which was let go of, is there again, free, and takes writes."""
        system = self._system
        try:
            root = system.open_root("local.back", self._path)
        except OSError:
            return False
        lock = -1
        try:
            member = small_files.read(system, root, MEMBER) or b""
            if member.strip().decode("ascii", "replace") != self.member:
                return False
            lock = system.open_at("local.back", root, _LOCK, os.O_RDWR)
            if not system.lock_exclusive("local.back", lock):
                return False
            system.pwrite_all("local.back", lock, b"%-20d\n" % os.getpid(), 0)
            system.fsync("local.back", lock)
            return True
        except OSError:
            return False
        finally:
            if lock >= 0:
                system.close("local.back", lock)
            system.close("local.back", root)

    def remember_boot(self) -> None:
        """Durably take this boot and mount as the last one."""
        try:
            small_files.replace(self._system, self._root, _BOOT, self._boot)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Torn by a crash it would be another boot, and what is in doubt is marked once more.
            small_files.overwrite(self._system, self._root, _BOOT, self._boot)

    def foreign(self) -> list[bytes]:
        """Names in the directory that are not ours."""
        names = self._names() - _OURS - _OF_FILE_SYSTEM
        return sorted(name for name in names if not name.startswith(_LOST))

    def _names(self) -> set[bytes]:
        fd = self._system.open_at("local.list", self._root, b".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return {item.name for item in self._system.list_dir("local.list", fd)}
        finally:
            self._system.close("local.list", fd)

    def _check(self) -> bool:
        """Whether the directory is new; TierError if it is neither that nor ours."""
        version = small_files.read(self._system, self._root, VERSION)
        if version is not None:
            if version.strip() != FORMAT_VERSION:
                found = version.strip().decode("ascii", "replace")
                raise TierError(
                    f"local tier {self._path} has format {found}, "
                    f"this tierfs knows {FORMAT_VERSION.decode()}: use the version that made it"
                )
            return False
        foreign = sorted(self._names() - _SETUP - _OF_FILE_SYSTEM)
        if foreign:
            raise TierError(
                f"local tier {self._path} is not empty and no tierfs directory (it holds "
                f"{os.fsdecode(foreign[0])!r}): name an empty directory"
            )
        return True

    def _probe(self) -> None:
        try:
            self._system.set_xattr("local.probe", self._root, _PROBE, b"")
            self._system.remove_xattr("local.probe", self._root, _PROBE)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return  # it has them, and no room: a full tier is mounted to be emptied
            if error.errno != errno.EOPNOTSUPP:
                raise
            raise TierError(
                f"local tier {self._path}: its file system has no user xattrs: use XFS or ext4"
            ) from None

    def _take_lock(self) -> None:
        system = self._system
        fd = system.open_at("local.lock", self._root, _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not system.lock_exclusive("local.lock", fd):
                raise self._in_use()
            # in place: a full tier might not give back the block that a truncate frees
            system.pwrite_all("local.lock", fd, b"%-20d\n" % os.getpid(), 0)
        except BaseException:
            system.close("local.lock", fd)
            raise
        self._lock = fd

    def note_end(self) -> None:
        """Tell who wants the directory next that its mount is gone and this process is ending."""
        note = b"%-14d%s\n" % (os.getpid(), _ENDING)
        self._system.pwrite_all("local.end", self._lock, note, 0)

    def _in_use(self) -> TierInUse:
        content = small_files.read(self._system, self._root, _LOCK) or b""
        word, _, state = content.strip().partition(b" ")
        pid, ends = word.decode("ascii", "replace"), state.strip() == _ENDING
        dead = ends or (pid.isdecimal() and is_dead(int(pid)))
        if dead:
            where = hangs_on(int(pid)) if pid.isdecimal() else ""
            became = "whose mount is gone" if ends else "which was killed"
            return TierInUse(
                f"local tier {self._path} is in use by process {pid}, {became} and "
                f"which waits for a call of a tier: {_advice(where)}, and mount again; or name "
                "another local directory",
                ending=ends,
            )
        holder = f"process {pid}" if pid else "a process that is just starting"
        return TierInUse(
            f"local tier {self._path} is in use by {holder}: unmount that one first, or name "
            "another directory"
        )

    def _set_up(self) -> None:
        # VERSION comes last: until then the directory still counts as new.
        system = self._system
        try:
            system.mkdir_at("local.setup", self._root, OBJECTS, 0o700)
        except FileExistsError:
            self._check_unused()
        member = secrets.token_hex(16).encode() + b"\n"
        small_files.replace(system, self._root, MEMBER, member)
        small_files.replace(system, self._root, VERSION, FORMAT_VERSION + b"\n")

    def _check_unused(self) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY
        fd = self._system.open_at("local.setup", self._root, OBJECTS, flags)
        try:
            if self._system.list_dir("local.setup", fd):
                raise TierError(
                    f"local tier {self._path} has objects but no file VERSION: restore that, or "
                    "name another directory"
                )
        finally:
            self._system.close("local.setup", fd)

    def _check_private(self) -> None:
        """Content is kept from others by the directory of the objects, whatever holds it."""
        st = self._system.stat_at("local.stat", self._root, OBJECTS)
        if st.st_uid != os.geteuid() or st.st_mode & 0o077:
            raise TierError(
                f"local tier {self._path}: its directory objects is not for root alone (owner "
                f"{st.st_uid}, mode {stat.S_IMODE(st.st_mode):04o}): look who has made it; name "
                "another directory, or, if it is right, give it back: chown 0:0 and chmod 0700"
            )

    def _read_member(self) -> str:
        content = small_files.read(self._system, self._root, MEMBER) or b""
        if not re.fullmatch(rb"[0-9a-f]{32}\n", content):
            raise TierError(
                f"local tier {self._path}: its file MEMBER is missing or damaged: restore it "
                "(32 hex digits and a newline), or name another directory"
            )
        return content.strip().decode()

    def _read_boot(self) -> bytes:
        environ = os.environ
        boot = environ.get(TEST_BOOT_ID) or self._system.boot_id("local.boot")
        mount = environ.get(TEST_MOUNT_ID) or self._system.mount_id("local.boot", self._root)
        return f"{boot} {mount}\n".encode()


def _advice(where: str) -> str:
    if not where:
        return "see that both tiers answer"
    return (
        f"it hangs on {where}: see that the file system of that answers (thaw it with fsfreeze -u, "
        "or mend what it lies on)"
    )
