"""Which rule of its profile each file of a checkpoint meets: for people who ask why it waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tierfs.groups.facts import Found
from tierfs.groups.judge import shards_of
from tierfs.groups.profiles import Profile, matches_any


def rules_met(profile: Profile, content: Mapping[bytes, Found]) -> dict[bytes, tuple[str, ...]]:
    """For each file of `content`, by its path, what it counts for in `profile`."""
    named = dict(_named(content)) if profile.indexed else {}
    return {
        path: tuple(_rules(profile, path, found, named.get(path)))
        for path, found in sorted(content.items())
    }


def _named(content: Mapping[bytes, Found]) -> Iterator[tuple[bytes, bytes]]:
    for index, found in content.items():
        if found.index is not None and not found.stale:
            for path in (shards_of(index, found.index) or {}).values():
                yield path, index


def _rules(profile: Profile, path: bytes, found: Found, index: bytes | None) -> Iterator[str]:
    if found.stale:
        yield "of an earlier run: counts for nothing"
        return
    for need in profile.required:
        if matches_any(need.patterns, path):
            yield f"required: {need.label}"
    if path == profile.end_marker.encode():
        yield "end marker, of the generation before" if found.linked else "end marker"
    if index is not None:
        yield f"shard that {index.decode(errors='backslashreplace')} names"
    if profile.indexed and found.index is not None:
        yield "index of shards"
    if matches_any(profile.typical, path):
        yield f"typical of {profile.name}"
