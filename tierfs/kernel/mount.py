"""A mount with the filter: the device, its backings and the pumps, made and closed together."""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.config import Settings
from tierfs.kernel.backings import Backings
from tierfs.kernel.device import Device
from tierfs.kernel.filter import Filter
from tierfs.namespace.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class FilteredMount:
    """A mounted /dev/fuse of our own, with pyfuse3 behind the filter.

    Attributes:
        path: what pyfuse3 is told to mount.
    """

    path: str
    device: Device
    filter: Filter

    @classmethod
    def open(
        cls, mountpoint: str, source: str, fs: FileSystem, settings: Settings
    ) -> FilteredMount:
        """Mounts. OSError, and then nothing is mounted; EPERM without CAP_SYS_ADMIN."""
        device = Device()
        try:
            backings = Backings(device)
            fs.core.direct = backings
            pumps = Filter(
                device, fs, backings, lambda: backings.try_out(fs.core),
                passthrough=settings.passthrough,
            )  # fmt: skip
            try:
                device.mount(mountpoint, source)
            except BaseException:
                pumps.close()
                raise
        except BaseException:
            device.close()
            raise
        return cls(pumps.path, device, pumps)

    async def run(self) -> None:
        """Moves messages until the mount is gone."""
        await self.filter.run()

    def close(self) -> None:
        """After pyfuse3 was closed."""
        self.filter.close()
        self.device.close()
