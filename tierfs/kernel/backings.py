"""Which open files the kernel reads and writes by itself, and why the others are not."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Iterable

from tierfs.kernel.device import Device
from tierfs.namespace.core import Core
from tierfs.namespace.direct import Refusal

log = logging.getLogger(__name__)

_REASONS = {
    errno.EPERM: Refusal.NO_RIGHTS,
    errno.ELOOP: Refusal.STACKED,
    errno.EOPNOTSUPP: Refusal.UNSUPPORTED,
    errno.EMFILE: Refusal.NO_DESCRIPTOR,
    errno.ENFILE: Refusal.NO_DESCRIPTOR,
}


class Backings:
    """Passthrough of one mount.

    Attributes:
        enabled: new opens may get it.
        reason: why it is off, in one line; empty while it is on.
        fallbacks: opens that went the ordinary way, by reason.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.enabled = False
        self.reason = "the kernel has not answered yet"
        self.fallbacks: Counter[str] = Counter()
        self._owned: set[int] = set()
        self._suspects: set[int] = set()
        self._since = 0

    def disable(self, reason: str) -> None:
        """No file gets it, for `reason`."""
        self.enabled, self.reason = False, reason

    def try_out(self, core: Core) -> None:
        """Decides, on a file of the local tier, whether it works here.

        Without leases nobody could tell the end of writing, so they are needed, too.
        """
        try:
            with core.store.own_file() as fd:
                core.os.has_no_writer("passthrough.lease", fd)
                highest = self._device.open_backing(fd)
                self._device.close_backing(highest)
        except OSError as error:
            refusal = _REASONS.get(error.errno or 0)
            self.disable(f"the local tier: {refusal or error.strerror}")
        else:
            self.enabled, self.reason = True, ""
            self._sweep(highest)

    def inherit(self, owned: Iterable[int], suspects: Iterable[int], since: int) -> None:
        """An earlier worker got backings: `owned` are in use, `suspects` and those after `since`
        perhaps not. What is not goes when it is known that there is passthrough at all."""
        self._owned, self._suspects, self._since = set(owned), set(suspects), since

    def _sweep(self, highest: int) -> None:
        # the kernel gives ids in rising order, so `highest` is above all that were given before
        suspects = self._suspects | set(range(self._since + 1, highest))
        for backing in suspects - self._owned:
            with contextlib.suppress(FileNotFoundError):
                self._device.close_backing(backing)
        self._suspects = set()
        self._since = highest

    def open(self, fd: int) -> int:
        """Registers a file; 0 when the kernel refuses, which is counted."""
        try:
            return self._device.open_backing(fd)
        except OSError as error:
            refusal = _REASONS.get(error.errno or 0)
            if refusal is None:
                log.info("passthrough refused: %s", error)
            self.refused(refusal or Refusal.OTHER)
            return 0

    def close(self, backing: int) -> None:
        """The last open file of a backing is gone."""
        try:
            self._device.close_backing(backing)
        except OSError as error:
            log.warning("backing %d was not given back: %s", backing, error)

    def refused(self, refusal: Refusal) -> None:
        """Counts an open that goes the ordinary way."""
        self.fallbacks[str(refusal)] += 1
