"""The wire format: one JSON object a line, each way.

A client sends one request, ``{"command": NAME, FIELD: …}``, and reads ``{"event": NAME, …}`` any
number of times and then one ``{"result": …, "exit_code": N}`` or ``{"error": TEXT, "exit_code":
N}``; the daemon then closes the connection. A client that closes first takes its request back.

Names on Linux are bytes: what is not UTF-8 travels as a surrogate escape (PEP 383), which JSON
writes as ``\\udcXX``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tierfs.errors import TierfsError

LINE_LIMIT = 4 * 1024 * 1024
"""Longest request in bytes: some thousand paths of the longest kind."""


class ProtocolError(TierfsError):
    """The other side said something that is not in the protocol."""


def encode(message: Mapping[str, Any]) -> bytes:
    """`message` as one line, newline included."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in `line`.

    Raises:
        ProtocolError: not one JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:  # the second: brackets in brackets
        raise ProtocolError(f"control socket: not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("control socket: a message must be a JSON object")
    return message
