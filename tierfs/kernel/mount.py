"""A mount with the filter: the device, its backings and the pumps, made and closed together."""

from __future__ import annotations

from dataclasses import dataclass

from tierfs.config import Settings
from tierfs.journal import DropRequests
from tierfs.kernel.backings import Backings
from tierfs.kernel.device import Device
from tierfs.kernel.filter import Filter
from tierfs.kernel.resent import Requests
from tierfs.namespace.filesystem import FileSystem
from tierfs.namespace.restart.remembered import Remembered


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier worker of the mount left.

    Attributes:
        device: the descriptor of its /dev/fuse, mounted.
        done: numbers of the requests that it carried out and perhaps did not answer.
    """

    device: int
    remembered: Remembered
    done: frozenset[int]


@dataclass(frozen=True, slots=True)
class FilteredMount:
    """A mounted /dev/fuse of our own, with pyfuse3 behind the filter.

    Attributes:
        path: what pyfuse3 is told to mount.
        requests: which request a handler is carrying out.
    """

    path: str
    device: Device
    filter: Filter
    requests: Requests

    @classmethod
    def open(
        cls, mountpoint: str, source: str, fs: FileSystem, settings: Settings
    ) -> FilteredMount:
        """Mounts. OSError, and then nothing is mounted; EPERM without CAP_SYS_ADMIN."""
        device = Device()
        try:
            made = cls._make(device, fs, settings, None)
            try:
                device.mount(mountpoint, source)
            except BaseException:
                made.filter.close()
                raise
        except BaseException:
            device.close()
            raise
        return made

    @classmethod
    def take_over(cls, earlier: Earlier, fs: FileSystem, settings: Settings) -> FilteredMount:
        """Goes on with a mount of which the worker has ended."""
        return cls._make(Device(earlier.device), fs, settings, earlier)

    @classmethod
    def _make(
        cls, device: Device, fs: FileSystem, settings: Settings, earlier: Earlier | None
    ) -> FilteredMount:
        backings = Backings(device)
        fs.core.direct = backings
        done: frozenset[int] = frozenset()
        init: bytes | None = None
        if earlier is not None:
            known, done = earlier.remembered, earlier.done
            init = known.init
            owned = {handle.backing for handle in known.handles.values()}
            backings.inherit(owned, known.backings, known.highest_backing)
        requests = Requests(done, lambda uniques: fs.core.journal.post(DropRequests(uniques)))
        pumps = Filter(
            device, fs, backings, lambda: backings.try_out(fs.core), requests,
            passthrough=settings.passthrough, init=init,
        )  # fmt: skip
        return cls(pumps.path, device, pumps, requests)

    async def run(self) -> None:
        """Moves messages until the mount is gone."""
        await self.filter.run()

    def close(self) -> None:
        """After pyfuse3 was closed."""
        self.filter.close()
        self.device.close()
