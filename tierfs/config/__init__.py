"""Settings: every key with its default and rule; read from TOML, overridden by the caller."""

from tierfs.config.load import decode, encode, load, read_file, resolve
from tierfs.config.settings import Settings, default_node, keys

__all__ = ["Settings", "decode", "default_node", "encode", "keys", "load", "read_file", "resolve"]
