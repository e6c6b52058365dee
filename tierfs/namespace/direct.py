"""What the namespace knows of kernel passthrough: files that the kernel reads and writes itself.

While a node has open handles they all go the same way, with the same backing: the kernel fails any
other open with EIO (KERNEL_PATH.md, "Rules of passthrough").
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol


class Refusal(enum.StrEnum):
    """Why an open went the ordinary way."""

    NO_RIGHTS = "no CAP_SYS_ADMIN"
    STACKED = "on a stacked file system (overlayfs)"
    UNSUPPORTED = "the file system does not support it"
    NO_DESCRIPTOR = "out of descriptors"
    RESERVE = "local tier below its reserve"
    SPILLED = "its content is on the shared tier: the local tier was full"
    OTHER = "refused by the kernel"


class Direct(Protocol):
    """Grants passthrough. Nothing here blocks."""

    @property
    def enabled(self) -> bool:
        """Whether new opens may get it."""

    @property
    def reason(self) -> str:
        """Why it is off; empty while it is on."""

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Opens that went the ordinary way, by reason."""

    def open(self, fd: int) -> int:
        """Registers a file; its backing id, 0 when that is refused."""

    def close(self, backing: int) -> None:
        """Gives a backing back."""

    def refused(self, refusal: Refusal) -> None:
        """Counts an open that goes the ordinary way although `enabled`."""


class NoDirect:
    """All files go the ordinary way."""

    enabled = False

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.fallbacks: Mapping[str, int] = {}

    def open(self, fd: int) -> int:
        """Refuses."""
        return 0

    def close(self, backing: int) -> None:
        """There are none."""

    def refused(self, refusal: Refusal) -> None:
        """Nothing else is possible: not counted."""
