"""``tierfs status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from tierfs.cli import output
from tierfs.config.units import format_duration, format_size
from tierfs.control import requests
from tierfs.control.client import call
from tierfs.control.discovery import find_mount

_SHOWN = 10


@click.command()
@click.argument("mountpoint", required=False)
@output.json_option
def status(mountpoint: str | None) -> None:
    """Show what is pending, what is wrong, and how full the tiers are."""
    place, _ = find_mount(mountpoint)
    result, _ = call(place, requests.Status())
    if output.wants_json():
        output.emit(result)
        return
    output.table(_rows(result))
    for line in _troubles(result):
        output.say(line)


def _rows(s: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "mount", f"{s['mountpoint']} on {s['node']}, up {format_duration(s['uptime_seconds'])}"
    yield "pending", _pending(s)
    unsynced = format_duration(s["oldest_unsynced_seconds"])
    yield "not synced", f"oldest for {unsynced}" if s["oldest_unsynced_seconds"] else "nothing"
    yield "open", f"{s['open_for_write']} files for writing"
    committed = f"{s['committed_files']} files, {format_size(s['committed_bytes'])}"
    yield "committed", f"{committed} since the mount"
    yield "sending", _sending(s)
    for tier in ("local", "shared"):
        yield tier, _tier(s[tier])
    yield "clean", _capacity(s["capacity"])
    if not s["passthrough"]:
        yield "passthrough", f"no ({s['passthrough_reason']})"
    yield "member", f"{s['member']} (pid {s['worker_pid']}, version {s['version']})"


def _sending(s: dict[str, Any]) -> str:
    limit = s["bwlimit_bytes"]
    limited = f" (limited to {format_size(limit)}/s, reading back included)" if limit else ""
    return f"{format_size(s['write_rate_bytes'])}/s{limited}"


def _pending(s: dict[str, Any]) -> str:
    if not s["pending_ops"]:
        return "nothing: all that was closed is on the shared tier"
    size = format_size(s["pending_bytes"])
    age = format_duration(s["oldest_pending_seconds"])
    return f"{s['pending_files']} files, {size}; {s['pending_ops']} changes, oldest {age}"


def _tier(tier: dict[str, Any]) -> str:
    free, total = format_size(tier["free_bytes"]), format_size(tier["total_bytes"])
    reason = f": {tier['reason']}" if tier["reason"] else ""
    return f"{tier['path']}: {free} free of {total}, {tier['state']}{reason}"


def _capacity(c: dict[str, Any]) -> str:
    kept = f"{c['clean_files']} local copies, {format_size(c['clean_bytes'])}"
    if c["pinned_files"]:
        kept += f" ({c['pinned_files']} files pinned, {format_size(c['pinned_bytes'])})"
    gone = f"{c['evicted_files']} evicted, {format_size(c['evicted_bytes'])}"
    parts = [kept, gone]
    if c["waiting_writes"]:
        parts.append(f"{c['waiting_writes']} writes wait for room")
    if c["waiting_closes"]:
        parts.append(f"{c['waiting_closes']} closes wait: too much is pending")
    return "; ".join(parts)


def _troubles(s: dict[str, Any]) -> Iterator[str]:
    if (lost := s["salvaged"]) is not None:
        ago = format_duration(time.time() - lost["time_ns"] / 1e9)
        yield (
            f"  THE JOURNAL WAS LOST {ago} ago: {lost['committed']} files were committed from the "
            f"objects alone, {lost['beside']} are kept in .tierfs/quarantine on the shared tier, "
            f"{len(lost['unsealed'])} checkpoints are not known to be whole (OPERATIONS)"
        )
    yield from _section(
        "retrying",
        [
            f"{r['path']}: {r['error']} (attempt {r['attempts']}, again in "
            f"{format_duration(r['next_retry_seconds'])})"
            for r in s["retrying"]
        ],
    )
    yield from _section("stuck", [f"{i['path']}: {i['state']}: {i['error']}" for i in s["stuck"]])
    yield from _section(
        "checkpoints not published", [f"{u['path']}: {u['reason']}" for u in s["unsettled"]]
    )
    yield from _section("held", [f"{i['path']}: {i['reason']}" for i in s["held"]])
    if s["held_bytes"]:
        yield f"  removals that are held will free {format_size(s['held_bytes'])}"
    yield from _section("open for long", s["open_long"])
    yield from _section(
        "hanging",
        [
            f"{h['path']}: {h['operation']} for {format_duration(h['seconds'])}"
            for h in s["hanging"]
        ],
    )
    yield from _section("not ours, left alone", s["foreign"])
    if s["hidden"]:
        yield f"and {s['hidden']} names that you may not see"


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"{title}: {len(lines)}"
        yield from (f"  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN} more (--json lists all)"
