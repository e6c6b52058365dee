"""What is to be staged, and what was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tierfs.model import Attributes, Name, OpKind
from tierfs.shared.places import Place


class SharedSettings(Protocol):
    """The settings that the shared tier looks at; those of a mount have them."""

    @property
    def digest(self) -> str:
        """``sha256`` or ``xxh3_128``."""

    @property
    def lease(self) -> float:
        """Seconds after which a member that says nothing is gone."""

    @property
    def sha256sums(self) -> bool:
        """Whether a published checkpoint gets a file ``SHA256SUMS``."""

    @property
    def small_file(self) -> int:
        """Most bytes of a file that may have what is kept for small ones."""

    @property
    def small_reserve(self) -> int:
        """How many bytes larger files leave free, 2 % of the tier at the most."""

    @property
    def transfer_chunks(self) -> int:
        """How many chunks of one file are sent at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileJob:
    """One file to be staged.

    Attributes:
        source_fd: open for reading; stays the caller's, who keeps it open until the end.
        spilled: directory and name of the source if it lies on the shared tier, with owner, mode,
            times and xattrs as they are to be: it is verified and published itself.
        size: bytes to send; the source must have this size throughout.
        row: of the op; names the staged file.
        name: final name, for people who look into staging.
        attributes: owner, mode and times to give it.
        xattrs: the application's; ``user.tierfs.*`` and labels of security modules are left out.
        place: the directory that it will be published in.
        keep_setid: a chmod came after the last write, so setuid and setgid stay.
        digest: kind; None: that of the settings.
        plain: its SHA-256 as a whole is wanted as well.
        changed: whether the source was written since; asked between blocks, in worker threads.
        progress: told how many bytes more are written; in worker threads, one call at a time.
    """

    source_fd: int
    spilled: tuple[int, Name] | None = None
    size: int
    row: int
    name: Name
    attributes: Attributes
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    place: Place | None = None
    keep_setid: bool = False
    digest: str | None = None
    plain: bool = False
    changed: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda count: None


@dataclass(frozen=True, slots=True)
class Staged:
    """Something complete, verified and durable in staging that one rename publishes.

    Attributes:
        kind: PUT, MKDIR or SYMLINK.
        inode: what its final name will have: the evidence that the commit happened.
        digest: of a file, in its written form.
        in_place: it is the spilled object itself under a second name.
        beside: the directory it is staged in where `.tierfs/staging` is on another file system.
    """

    kind: OpKind
    row: int
    name: Name
    inode: int
    digest: str | None = None
    beside: Place | None = None
    in_place: bool = False
