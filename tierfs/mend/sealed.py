"""What the manifests of sealed checkpoints say."""

from __future__ import annotations

import os
from pathlib import Path

from tierfs.mend import tiers
from tierfs.shared import GroupState, ManifestLine, Place

__all__ = ["ManifestLine", "Manifests"]


class Manifests:
    """The manifests of a shared tier. Blocks; needs root."""

    def __init__(self, root: str) -> None:
        """Raises TierError."""
        self._tier = tiers.looked_at(Path(root))
        self._root = os.fsencode(root)

    def close(self) -> None:
        """Let go of the tier."""
        self._tier.close()

    def of(self, directory: str) -> dict[str, ManifestLine] | None:
        """The files, by full path, of the checkpoint that stands at `directory`.

        None: it is none, was put there without tierfs, or changes at this moment. Raises OSError.
        """
        path = os.fsencode(os.path.relpath(directory, os.fsdecode(self._root)))
        entry = self._tier.lookup(Place(b"" if path == b"." else path), b"")
        if entry is None or entry.directory_id is None:
            return None
        records = self._tier.group_records(entry.directory_id)
        sealed = any(
            record.state is GroupState.SEALED and record.inode == entry.st.st_ino
            for record in records
        )
        if not sealed or records[-1].state is GroupState.SEALING:
            return None
        lines = self._tier.manifest(entry.directory_id)
        if lines is None:
            return None
        top = os.fsencode(directory)
        return {os.fsdecode(os.path.join(top, line.path)): line for line in lines}
