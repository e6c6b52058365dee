"""Reading and checking: a TOML file, then overrides, then defaults."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tierfs.config.nearest import nearest
from tierfs.config.settings import Settings, keys
from tierfs.errors import ConfigError


def read_file(path: Path) -> dict[str, Any]:
    """The checked values of the TOML file `path`; keys that it does not set are not there.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, or a value against its rule.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    return check(document, source=str(path))


def check(values: Mapping[str, object], *, source: str) -> dict[str, Any]:
    """`values` parsed by the rule of each key; `source` says in errors where they came from.

    Raises:
        ConfigError: an unknown key, or a value against its rule.
    """
    known = keys()
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{source}: unknown key {name!r}{nearest(name, list(known))}")
        try:
            checked[name] = known[name].metadata["parse"](value)
        except ValueError as error:
            raise ConfigError(f"{source}: {name} = {_shown(value)}: {error}") from None
    return checked


def resolve(values: Mapping[str, Any]) -> Settings:
    """The settings that the checked `values` make together with the defaults.

    Raises:
        ConfigError: a key without a default is missing.
    """
    for name in ("local", "shared"):
        if name not in values:
            raise ConfigError(
                f"{name}: not set; give --{name} DIR or set {name} in the configuration file"
            )
    return Settings(**values)


def load(path: Path | None, overrides: Mapping[str, object]) -> Settings:
    """The settings of the file `path` (if any), with `overrides` that are not None put over them.

    Raises:
        ConfigError: see :func:`read_file` and :func:`resolve`.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    values = read_file(path) if path is not None else {}
    return resolve({**values, **check(given, source="command line")})


def encode(settings: Settings) -> str:
    """`settings` as one JSON text: how ``tierfs mount`` hands them to the daemon."""
    return json.dumps(asdict(settings), default=str)


def decode(text: str) -> Settings:
    """The settings that :func:`encode` made `text` of.

    Raises:
        ConfigError: not such a text.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--settings: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("--settings: must be a JSON object")
    return resolve(check(values, source="--settings"))


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
