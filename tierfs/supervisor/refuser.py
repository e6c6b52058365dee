"""Answers EIO to every request of a mount that no worker serves any more.

Better than aborting the connection: nobody hangs, files that the kernel reads and writes by itself
go on, and `tierfs reload` can still bring the mount back.
"""

from __future__ import annotations

import errno
import os
import struct

# include/uapi/linux/fuse.h: struct fuse_in_header begins with len, opcode, unique; struct
# fuse_out_header is len, error, unique.
_REQUEST = struct.Struct("=IIQ")
_REPLY = struct.Struct("=IiQ")
_FORGET, _INTERRUPT, _BATCH_FORGET = 2, 36, 42
_UNANSWERED = frozenset({_FORGET, _INTERRUPT, _BATCH_FORGET})
_RESEND = _REPLY.pack(_REPLY.size, 7, 0)
"""FUSE_NOTIFY_RESEND: the kernel queues again what a dead worker had read and not answered."""

_BUFFER_BYTES = (1 << 20) + (64 << 10)


def ask_again(device: int) -> None:
    """Requests that are with nobody come to the next reader of `device`."""
    os.write(device, _RESEND)


def refuse_all(device: int) -> bool:
    """Answers EIO to all that waits now; False when the mount is gone."""
    while True:
        try:
            request = os.read(device, _BUFFER_BYTES)
            _, opcode, unique = _REQUEST.unpack_from(request)
            if opcode not in _UNANSWERED:
                os.write(device, _REPLY.pack(_REPLY.size, -errno.EIO, unique))
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise
