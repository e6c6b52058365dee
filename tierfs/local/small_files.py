"""Small files of the local tier: read whole, replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

from tierfs.osio import OS

_LONGEST = 4096
NEW = b".new"
"""Suffix of a file that a crash kept from getting its name."""


def read(system: OS, directory: int, name: bytes) -> bytes | None:
    """The first 4 KiB of `name`; None if there is no such file."""
    try:
        fd = system.open_at("local.read", directory, name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        buffer = bytearray(_LONGEST)
        return bytes(buffer[: system.pread_into("local.read", fd, buffer, 0)])
    finally:
        system.close("local.read", fd)


def replace(system: OS, directory: int, name: bytes, content: bytes) -> None:
    """Give `name` the new `content`, durably: a crash leaves the old or the new one."""
    temporary = name + NEW
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    fd = system.open_at("local.replace", directory, temporary, flags, 0o600)
    try:
        system.pwrite_all("local.replace", fd, content, 0)
        system.fsync("local.replace", fd)
    finally:
        system.close("local.replace", fd)
    system.rename_at("local.replace", directory, temporary, directory, name)
    system.fsync_dir("local.replace", directory)


def overwrite(system: OS, directory: int, name: bytes, content: bytes) -> None:
    """The same without a byte more on the drive, for a full one: a crash may leave anything.

    `name` is there.
    """
    fd = system.open_at("local.replace", directory, name, os.O_WRONLY)
    try:
        system.pwrite_all("local.replace", fd, content, 0)
        system.ftruncate("local.replace", fd, len(content))
        system.fsync("local.replace", fd)
    finally:
        system.close("local.replace", fd)


SALVAGED = b"SALVAGED"
"""What was salvaged of this local tier when its journal was lost, as JSON."""


def note_salvage(system: OS, local: Path, summary: bytes) -> None:
    """Note in the local tier what was salvaged of it, durably. OSError."""
    root = system.open_root("local.open", os.fspath(local))
    try:
        replace(system, root, SALVAGED, summary)
    finally:
        system.close("local.open", root)


def noted_salvage(system: OS, local: Path) -> bytes | None:
    """What `note_salvage` noted last; None: its journal was never lost. OSError."""
    root = system.open_root("local.open", os.fspath(local))
    try:
        return read(system, root, SALVAGED)
    finally:
        system.close("local.open", root)
