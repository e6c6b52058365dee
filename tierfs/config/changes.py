"""Settings that are changed while a mount runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import replace

from tierfs.config.load import check
from tierfs.config.nearest import nearest
from tierfs.config.settings import Settings, keys
from tierfs.errors import ConfigError


def live_keys() -> list[str]:
    """The settings that can be changed while a mount runs."""
    return [name for name, key in keys().items() if key.metadata["live"]]


def changed(settings: Settings, words: Iterable[str]) -> Settings:
    """`settings` with each of `words`, ``KEY=VALUE``, put over them.

    A value is written as in TOML; texts need no quotes.

    Raises:
        ConfigError: an unknown key, one that cannot be changed, or a value against its rule.
    """
    values: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"set: {word!r} is not KEY=VALUE")
        _check_live(name.strip())
        values[name.strip()] = _value(text.strip())
    return replace(settings, **check(values, source="set"))


def _check_live(name: str) -> None:
    live = live_keys()
    if name in live:
        return
    if name in keys():
        raise ConfigError(
            f"set: {name} cannot be changed while mounted; change the configuration and mount again"
        )
    raise ConfigError(f"set: unknown key {name!r}{nearest(name, live)}")


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
