"""The conversation between a mount's daemon and its clients, over a unix socket.

The daemon's half is in `control.server` and `control.access`; this door opens the clients' half
only, so that a client imports neither trio nor FUSE.
"""

from tierfs.control.client import FlushIncomplete, call, flush, status
from tierfs.control.discovery import Session, find_mount, read_session, session_directory

__all__ = [
    "FlushIncomplete",
    "Session",
    "call",
    "find_mount",
    "flush",
    "read_session",
    "session_directory",
    "status",
]
