"""tierfs: one namespace over node-local NVMe and a shared NVMe-oF tier.

`flush` and `status` talk to the daemon of a mount and need neither FUSE nor root.
"""

from tierfs.control.client import flush, status

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "flush", "status"]
