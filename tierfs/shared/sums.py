"""``SHA256SUMS`` of a published checkpoint: for ``sha256sum -c``, by whoever has no tierfs.

The sums are those that were taken when the files were read back; only a file that was not sent as a
part of an unsealed checkpoint is read for them when it is sealed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Sequence

from tierfs.shared import layout
from tierfs.shared.digest import BLOCK_BYTES, file_digest, new_hasher
from tierfs.shared.groups import ManifestLine
from tierfs.shared.places import Place
from tierfs.shared.trash import Trash

log = logging.getLogger(__name__)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_READ = os.O_RDONLY | os.O_NONBLOCK
_DRAFT = layout.STAGING_PREFIX + layout.SUMS


class Sums(Trash):
    """Blocking calls."""

    def put_sums(self, place: Place, top: int, lines: Sequence[ManifestLine]) -> None:
        """Have the sums of `lines` in the staged checkpoint `top`, which will stand at `place`.

        That is what the settings say; else none are there that tierfs has made. A ``SHA256SUMS`` of
        the application stays as it is.
        """
        found = self._made_here(top)
        if found is False:
            log.info("%s: the application has a SHA256SUMS of its own", self.shown(place))
            return
        if not (self.settings.sha256sums or found):
            return
        st = self.system.fstat("sums.stat", top)
        if self.settings.sha256sums:
            self._write(top, st, b"".join(self._text(top, lines)))
        else:
            self.remove(top, layout.SUMS)
        # frameworks sort checkpoints by the time of their directory
        self.system.utime_fd("sums.times", top, None, st.st_mtime_ns)
        self.system.fsync_dir("sums.fsync_dir", top)

    def _made_here(self, top: int) -> bool | None:
        """Whether tierfs has made the ``SHA256SUMS`` in `top`; None: there is none."""
        try:
            fd = self.system.open_at("sums.look", top, layout.SUMS, os.O_PATH)
        except FileNotFoundError:
            return None
        try:
            return self.is_sums(fd)
        finally:
            self.system.close("sums.look", fd)

    def _text(self, top: int, lines: Sequence[ManifestLine]) -> Iterator[bytes]:
        for line in lines:
            folder, name = os.path.split(line.path)
            with self.below_at(top, folder) as directory:
                if not stat.S_ISREG(self.system.stat_at("sums.stat", directory, name).st_mode):
                    continue
                fd = self.system.open_at("sums.open", directory, name, _READ)
            try:
                yield _line(line.path, self._sum(fd))
            finally:
                self.system.close("sums.close", fd)

    def _sum(self, fd: int) -> bytes:
        try:
            return self.system.get_xattr("sums.recorded", fd, layout.XATTR_SHA256)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
        hasher, position = hashlib.sha256(), 0
        while data := self.system.pread("sums.read", fd, BLOCK_BYTES, position):
            hasher.update(data)
            position += len(data)
        return hasher.hexdigest().encode()

    def _write(self, top: int, st: os.stat_result, text: bytes) -> None:
        hasher = new_hasher(self.settings.digest)
        hasher.update(text)
        digest = file_digest(self.settings.digest, [hasher.digest()] if text else [])
        fd = self.system.open_at("sums.create", top, _DRAFT, _CREATE, 0o600)
        try:
            self.system.pwrite_all("sums.write", fd, text, 0)
            self.system.set_xattr("sums.mark", fd, layout.XATTR_SUMS, b"1")
            self.system.set_xattr("sums.digest", fd, layout.XATTR_DIGEST, digest.encode())
            self.system.fchown("sums.owner", fd, st.st_uid, st.st_gid)
            self.system.fchmod("sums.mode", fd, stat.S_IMODE(st.st_mode) & 0o666)
            self.system.fsync("sums.fsync", fd)
        finally:
            self.system.close("sums.close", fd)
        self.system.rename_at("sums.rename", top, _DRAFT, top, layout.SUMS)


def _line(path: bytes, digest: bytes) -> bytes:
    """As sha256sum(1) writes it: a line that begins with a backslash has some in its name."""
    shown = path.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return b"%s%s  %s\n" % (b"\\" if shown != path else b"", digest, shown)
