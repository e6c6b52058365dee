"""FUSE adapter: turns the kernel's requests into calls of the namespace. No decisions."""

from tierfs.kernel.mount import Earlier, FilteredMount
from tierfs.kernel.operations import Operations

__all__ = ["Earlier", "FilteredMount", "Operations"]
