"""Joining a shared tier: its id, and what it knows of this member."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time

from tierfs.errors import TierError
from tierfs.shared import layout
from tierfs.shared.probe import Abilities, probe
from tierfs.shared.staging import Staging

_ID = re.compile(r"tierfs (\d+) ([0-9a-f]{32})\n")
_READ = os.O_RDONLY | os.O_NONBLOCK
_MAX_BYTES = 65536


class Registration(Staging):
    """What happens once at each mount; all calls block and raise TierError or OSError.

    `shared_id` is the id of this tier, known after `probe` if it has one, else after `register`.
    `can_exchange` and `target_bytes` are, after `probe`, those of its `Abilities`.
    """

    shared_id: str | None = None
    can_exchange = True
    target_bytes = Abilities().target_bytes

    def probe(self) -> None:
        """Refuse a tier that cannot keep tierfs' promises, in one line. Leaves nothing behind."""
        self.shared_id = self._read_id()
        if self.expected_id is not None and self.shared_id is None:
            raise TierError(
                f"shared tier {self.root} was registered before and is empty now: is its file "
                f"system mounted? Mount it; tierfs does not write into the bare mount point"
            )
        if self.expected_id not in (None, self.shared_id):
            raise TierError(
                f"shared tier {self.root} is another one than this node's local tier belongs to: "
                f"mount the right one, or use a new local directory"
            )
        found = probe(self.system, self.root, self.root_fd, self.member)
        self.can_exchange, self.target_bytes = found.can_exchange, found.target_bytes

    def register(self, node: str) -> str:
        """Make this member known under the label `node`; the id of the tier.

        Makes ``.tierfs/`` with the tier's id if this is the first mount of all, the directory of
        this member, and the staging directory of this start.
        """
        self.make_private(self.root_fd, layout.CONTROL)
        self.start_generation()
        self.shared_id = self._read_id() or self._make_id()
        self._record_member(node)
        return self.shared_id

    def _make_id(self) -> str:
        text = f"tierfs {layout.FORMAT_VERSION} {secrets.token_hex(16)}\n"
        temporary = layout.staged_name(0, layout.ID_FILE)
        self._write_staged(temporary, text)
        control = self._open_control(b"")
        try:
            # link(2) is exclusive and shows the whole content at once, to every node.
            staging = self.staging_fd
            self.system.link_at("register.id", staging, temporary, control, layout.ID_FILE)
            self.system.fsync_dir("register.fsync_dir", control)
        except FileExistsError:
            pass
        finally:
            self.system.close("register.close", control)
            self.remove(self.staging_fd, temporary)
        made = self._read_id()
        if made is None:
            raise TierError(f"shared tier {self.root}: .tierfs/id vanished while it was made")
        return made

    def _record_member(self, node: str) -> None:
        nodes = self._open_control(b"")
        try:
            self.make_private(nodes, layout.NODES)
        finally:
            self.system.close("register.close", nodes)
        nodes = self._open_control(layout.NODES)
        try:
            self.make_private(nodes, self.member.encode())
        finally:
            self.system.close("register.close", nodes)
        now = time.time_ns()
        path = layout.NODES + b"/" + self.member.encode()
        directory = self._open_control(path)
        try:
            first = self._registered_ns(directory) or now
            record = {
                "format": layout.FORMAT_VERSION,
                "member": self.member,
                "node": node,
                "registered_ns": first,
                "mounted_ns": now,
            }
            temporary = layout.staged_name(0, layout.MEMBER_FILE)
            self._write_staged(temporary, json.dumps(record, indent=1) + "\n")
            name = layout.MEMBER_FILE
            self.system.rename_at("register.member", self.staging_fd, temporary, directory, name)
            self.system.fsync_dir("register.fsync_dir", directory)
        finally:
            self.system.close("register.close", directory)

    def _registered_ns(self, directory: int) -> int | None:
        try:
            found = json.loads(self._read(directory, layout.MEMBER_FILE) or "null")
            return int(found["registered_ns"])
        except (ValueError, KeyError, TypeError):
            return None

    def _write_staged(self, name: bytes, text: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = self.system.open_at("register.create", self.staging_fd, name, flags, 0o600)
        try:
            self.system.pwrite_all("register.write", fd, text.encode(), 0)
            self.system.fsync("register.fsync", fd)
        finally:
            self.system.close("register.close", fd)

    def _read_id(self) -> str | None:
        return self.id_below(self.root_fd)

    def id_below(self, root: int) -> str | None:
        """The id of the tier that directory `root` is; None: it is none. Raises TierError."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            control = self.system.open_beneath("register.open", root, layout.CONTROL, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise TierError(
                    f"{self.root}/.tierfs is not a directory and not tierfs' own: move it away"
                ) from None
            raise
        try:
            self._check_private(control)
            text = self._read(control, layout.ID_FILE)
        finally:
            self.system.close("register.close", control)
        if text is None:
            return None
        match = _ID.fullmatch(text)
        if match is None or int(match[1]) != layout.FORMAT_VERSION:
            raise TierError(
                f"{self.root}/.tierfs/id is not of this version of tierfs: it says {text[:60]!r}; "
                f"use the version that made it"
            )
        return match[2]

    def _check_private(self, control: int) -> None:
        """Whoever could make ``.tierfs`` first could put there what every node believes."""
        st = self.system.fstat("register.stat", control)
        if st.st_uid != os.geteuid() or st.st_mode & 0o077:
            raise TierError(
                f"{self.root}/.tierfs is not for root alone (owner {st.st_uid}, mode "
                f"{stat.S_IMODE(st.st_mode):04o}): look who has made it; move it away, or, if it "
                "is right, give it back: chown 0:0 and chmod 0700"
            )

    def _read(self, directory: int, name: bytes) -> str | None:
        try:
            fd = self.system.open_at("register.open", directory, name, _READ)
        except FileNotFoundError:
            return None
        try:
            buffer = bytearray(_MAX_BYTES)
            count = self.system.pread_into("register.read", fd, buffer, 0)
        finally:
            self.system.close("register.close", fd)
        return buffer[:count].decode(errors="replace")

    def _open_control(self, path: bytes) -> int:
        full = layout.CONTROL + b"/" + path if path else layout.CONTROL
        flags = os.O_RDONLY | os.O_DIRECTORY
        return self.system.open_beneath("register.open", self.root_fd, full, flags)
