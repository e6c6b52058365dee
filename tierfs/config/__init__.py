"""Settings: every key with its default and rule; read from TOML, overridden by the caller."""

from tierfs.config.changes import changed, live_keys
from tierfs.config.groups import NO_PROFILE, PROFILE_NAMES, GroupRule
from tierfs.config.load import decode, encode, load, read_file, resolve
from tierfs.config.policies import POLICY_NAMES, PolicyRule
from tierfs.config.settings import Settings, default_node, keys, reserve_bytes

__all__ = [
    "NO_PROFILE",
    "POLICY_NAMES",
    "PROFILE_NAMES",
    "GroupRule",
    "PolicyRule",
    "Settings",
    "changed",
    "decode",
    "default_node",
    "encode",
    "keys",
    "live_keys",
    "load",
    "read_file",
    "reserve_bytes",
    "resolve",
]
