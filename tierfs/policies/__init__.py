"""Which policy holds for a path. Pure: no I/O, no clock.

A pattern is a shell pattern. Without a slash it is for names of files in any directory
(``*.log``); with one it is for whole paths from the root of the mount (``runs/*/plots/*.png``),
where ``*`` and ``?`` match no slash and ``**`` any number of directories. One that ends in a slash
is for everything below such a directory (``datasets/`` is ``datasets/**``).
"""

from tierfs.policies.patterns import matcher
from tierfs.policies.policy import BUILT_IN, Policies, Policy, PolicyKind

__all__ = ["BUILT_IN", "Policies", "Policy", "PolicyKind", "matcher"]
