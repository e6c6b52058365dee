"""Whether an unsealed checkpoint is published now (DESIGN 6, "Sealed when …").

Quiet alone never seals. What its profile requires must be there and something must say that it
is whole; the word of a person (``tierfs commit``) stands for both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from tierfs.groups.facts import Decision, Facts, Verdict
from tierfs.groups.profiles import Profile, in_force
from tierfs.groups.writers import POINTER, Removal

LOOK_AGAIN = 1.0
"""Seconds after which it is looked again at what other nodes do."""

_SHOWN = 3


def judge(facts: Facts) -> Verdict:
    """What is to be done with the checkpoint of which `facts` are true now."""
    profile = in_force(facts.profile, (*facts.content, *facts.open_files, *facts.pending))
    missing = tuple(_missing(facts, profile))
    if facts.stuck:
        reason = f"cannot be committed: {_listed(facts.stuck)}"
        files = tuple(sorted(map(_text, facts.stuck)))
        return _verdict(Decision.BROKEN, profile, reason, missing, files=files)
    if facts.open_files:
        reason = f"open for writing: {_listed(facts.open_files)}"
        return _verdict(Decision.WAIT, profile, reason, missing)
    if facts.pending:
        reason = f"not yet committed: {_listed(facts.pending)}"
        return _verdict(Decision.WAIT, profile, reason, missing)
    if facts.doubtful:
        reason = "it is not known yet whether another node that wrote in it lives"
        return _verdict(Decision.WAIT, profile, reason, until_seconds=LOOK_AGAIN, will_seal=True)
    if facts.broken and facts.commit is None:
        return _verdict(
            Decision.BROKEN, profile, facts.broken, missing,
            files=tuple(sorted(map(_text, facts.broken_files))), until_seconds=facts.settle,
        )  # fmt: skip
    if facts.busy and facts.commit is None:
        reason = f"another node still writes it, or has not sent all: member {facts.busy}"
        return _verdict(Decision.WAIT, profile, reason, until_seconds=LOOK_AGAIN, will_seal=True)
    if obstacle := _obstacle(facts, missing):
        return _not_yet(facts, profile, obstacle, missing)
    if said := _said_whole(facts, profile):
        if _may_be_going(facts):
            return _settling(facts, profile, "files of it are being removed")
        return _verdict(Decision.SEAL, profile, said, missing)
    if _will_be(facts, profile):
        return _settling(facts, profile, "nothing may change in it for the time of settling")
    return _not_yet(facts, profile, _silence(facts, profile), missing)


def _missing(facts: Facts, profile: Profile) -> Iterator[str]:
    counted = _counted(facts)
    yield from (need.label for need in profile.required if not need.met_by(counted))
    if profile.indexed:
        for path in sorted(counted):
            text = facts.content[path].index
            if text is not None:
                yield from _missing_shards(path, text, counted)


def _counted(facts: Facts) -> set[bytes]:
    """The files of this generation."""
    return {path for path, found in facts.content.items() if not found.stale}


def _missing_shards(index: bytes, text: bytes, counted: set[bytes]) -> Iterator[str]:
    """The shards that the index file `index` names and that are not in `counted`."""
    shards = shards_of(index, text)
    if shards is None:
        yield f"a readable {_text(index)}"
        return
    for shard in sorted(shards):
        if shards[shard] not in counted:
            yield f"{shard} (named in {_text(index)})"


def shards_of(index: bytes, text: bytes) -> dict[str, bytes] | None:
    """The shards that the index file `index` with the content `text` names, and their paths.

    None: it cannot be understood.
    """
    directory = index[: index.rfind(b"/") + 1]
    try:
        shards = {str(shard) for shard in json.loads(text)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {shard: directory + shard.encode(errors="surrogatepass") for shard in shards}


def _obstacle(facts: Facts, missing: tuple[str, ...]) -> str:
    """What keeps it from being sealed whatever was said, "" if nothing does."""
    if facts.negative is not None:
        return f"{_text(facts.negative)} says that it is not whole"
    if facts.commit is not None:
        there, expected = len(_counted(facts)), facts.commit.count
        return "" if expected in (None, there) else f"{expected} files expected, {there} are there"
    if facts.lost:
        return f"a node that wrote it is gone and had not sent all: member {facts.lost}"
    if facts.removal is Removal.CUT_OFF:
        return "who removed files of it was killed: it may have been about to remove all of it"
    return f"missing: {', '.join(missing)}" if missing else ""


def _may_be_going(facts: Facts) -> bool:
    """Whether more may be removed of it at once: what is left of a checkpoint is not one."""
    under_way = facts.removal is Removal.UNDER_WAY and facts.commit is None
    return under_way and facts.quiet_seconds < facts.settle


def _said_whole(facts: Facts, profile: Profile) -> str:
    """What says that it is whole now, "" if nothing does."""
    settled = facts.quiet_seconds >= facts.settle
    if facts.commit is not None:
        return "tierfs commit"
    if facts.followed:
        return "those who wrote it have gone on to a newer one"
    if facts.flush and facts.writers_gone:
        return "flush, and nobody is left to write it"
    if _marked(facts, profile):
        # The sibling alone is no word: a restarted job makes one beside what its
        # predecessor was killed in (docs/decisions).
        if facts.sibling:
            return f"{profile.end_marker} is there, and a newer one beside it"
        if facts.flush:
            return f"{profile.end_marker} is there, and flush"
        if settled:
            return f"{profile.end_marker} is there, and nothing changed since"
    if _pointed(facts) and (settled or not _may_be_early(facts, profile)):
        return "a pointer names it"
    return ""


def _will_be(facts: Facts, profile: Profile) -> bool:
    """Whether being quiet for the time of settling is all that is wanting."""
    return facts.quiet_seconds < facts.settle and (_pointed(facts) or _marked(facts, profile))


def _pointed(facts: Facts) -> bool:
    """Whether a pointer names it, after what was written over in it."""
    return facts.pointer and POINTER not in facts.older_markers


def _marked(facts: Facts, profile: Profile) -> bool:
    """Whether its end marker was closed in this generation, after what was written over in it."""
    return _has_marker(facts, profile) and not _is_older(facts, profile)


def _has_marker(facts: Facts, profile: Profile) -> bool:
    found = facts.content.get(profile.end_marker.encode())
    return found is not None and not found.stale and not found.linked


def _is_older(facts: Facts, profile: Profile) -> bool:
    return profile.end_marker.encode() in facts.older_markers


def _may_be_early(facts: Facts, profile: Profile) -> bool:
    """Whether a pointer may have been written before all other files were."""
    if not profile.same_names:
        return False
    return facts.sibling_names is None or set(facts.sibling_names) != _counted(facts)


def _silence(facts: Facts, profile: Profile) -> str:
    wanting = [f"{profile.end_marker} is not there"] if profile.end_marker else []
    if _has_marker(facts, profile):
        wanting = [f"files of it were written over after {profile.end_marker}"]
    pointer = f"no pointer ({profile.pointer})" if profile.pointer else "no pointer"
    if facts.pointer:
        wanting.append("files of it were written over after the pointer that names it")
    else:
        wanting.append(f"{pointer} names it")
    wanting.append("those who wrote it have not gone on to a newer one")
    return "nothing says that it is whole: " + ", ".join(wanting)


def _not_yet(facts: Facts, profile: Profile, reason: str, missing: tuple[str, ...]) -> Verdict:
    if facts.quiet_seconds < facts.settle:
        rest = facts.settle - facts.quiet_seconds
        return _verdict(Decision.WAIT, profile, reason, missing, until_seconds=rest)
    return _verdict(Decision.UNSETTLED, profile, reason, missing)


def _settling(facts: Facts, profile: Profile, reason: str) -> Verdict:
    rest = facts.settle - facts.quiet_seconds
    return _verdict(Decision.WAIT, profile, reason, until_seconds=rest, will_seal=True)


def _verdict(
    decision: Decision,
    profile: Profile,
    reason: str,
    missing: tuple[str, ...] = (),
    *,
    files: tuple[str, ...] = (),
    until_seconds: float | None = None,
    will_seal: bool = False,
) -> Verdict:
    return Verdict(
        decision=decision, profile=profile.name, reason=reason, missing=missing, files=files,
        until_seconds=until_seconds, will_seal=will_seal,
    )  # fmt: skip


def _listed(paths: Collection[bytes]) -> str:
    """The first of `paths` and how many others."""
    names = sorted(map(_text, paths))
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
