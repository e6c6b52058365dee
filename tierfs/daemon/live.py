"""Settings that change while the mount runs, and outlive the worker that was told."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tierfs.config import Settings, changed, live_keys
from tierfs.control import requests
from tierfs.control.discovery import session_directory
from tierfs.control.results import SetResult
from tierfs.control.server import Peer, Send
from tierfs.daemon.rooms import Rooms, namespace_settings, writeback_settings
from tierfs.errors import ConfigError, TierfsError

log = logging.getLogger(__name__)

FILE = "changed.json"
"""In the runtime directory: the words of ``tierfs set``. Gone with the mount."""


def remembered(mountpoint: str, settings: Settings) -> Settings:
    """`settings` with what was changed since the mount."""
    try:
        words = json.loads(_path(mountpoint).read_text(encoding="utf-8"))
        return changed(settings, words.values())
    except FileNotFoundError:
        return settings
    except (OSError, ValueError, AttributeError, ConfigError) as error:
        log.error("%s: settings changed since the mount are lost: %s", _path(mountpoint), error)
        return settings


def forget(mountpoint: str) -> None:
    """A new mount begins with its configuration."""
    _path(mountpoint).unlink(missing_ok=True)


def spread(rooms: Rooms, settings: Settings) -> None:
    """Every room goes by `settings` from now on. Synchronous."""
    rooms.settings = rooms.shared.settings = settings
    rooms.shared.bandwidth.rate = settings.bwlimit
    rooms.fs.core.settings = namespace_settings(rooms.mountpoint, settings)
    rooms.writeback.use(writeback_settings(settings))
    logging.getLogger().setLevel(settings.log_level.upper())


class Live:
    """The handler of ``tierfs set``."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def set(self, request: requests.Set, peer: Peer, send: Send) -> tuple[SetResult, int]:
        """Changes what the words of `request` say, all or nothing; tells how it is then."""
        if request.changes:
            if not peer.is_root:
                raise TierfsError("set: only root may change settings")
            self._change(request.changes)
        settings = self._rooms.settings
        return SetResult(settings={name: getattr(settings, name) for name in live_keys()}), 0

    def _change(self, words: Sequence[str]) -> None:
        settings = changed(self._rooms.settings, words)
        mountpoint = self._rooms.mountpoint
        _keep(mountpoint, words)  # first: what was answered outlives this process
        spread(self._rooms, settings)
        log.info("%s: changed: %s", mountpoint, ", ".join(words))


def _keep(mountpoint: str, words: Sequence[str]) -> None:
    path = _path(mountpoint)
    known: Mapping[str, str] = {}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
    kept = {**known, **{word.partition("=")[0].strip(): word for word in words}}
    draft = path.with_name(f".{FILE}.{os.getpid()}")
    draft.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def _path(mountpoint: str) -> Path:
    return session_directory(mountpoint) / FILE
