"""Files whose content lies here before they are committed: the local tier had no room for them."""

from __future__ import annotations

import os

from tierfs.shared import layout
from tierfs.shared.staging import Staging

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class Spill(Staging):
    """The place for them in the staging area of this member; it outlives each start."""

    def spill_directory(self) -> int:
        """Descriptor of ``.tierfs/staging/MEMBER/spilled``, made with its ``objects``. Blocks."""
        with self.member_staging() as directory:
            self.make_private(directory, layout.SPILLED)
            fd = self.system.open_at("spill.directory", directory, layout.SPILLED, _DIRECTORY)
        try:
            self.make_private(fd, layout.SPILLED_OBJECTS)
        except BaseException:
            self.system.close("spill.directory", fd)
            raise
        return fd
