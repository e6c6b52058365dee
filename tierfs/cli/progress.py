"""How a waiting flush or umount shows its progress: a bar on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tierfs.cli import output
from tierfs.config.units import format_duration, format_size

OnEvent = Callable[[dict[str, Any]], None]


def as_lines() -> bool:
    """Whether JSON lines are wanted: asked for, or stdout is no terminal."""
    return output.wants_json() or not sys.stdout.isatty()


@contextmanager
def shown(title: str) -> Iterator[OnEvent]:
    """Show the events that the yielded callable gets."""
    if as_lines():
        yield output.emit
        return
    with _bar(title) as on_event:
        yield on_event


@contextmanager
def _bar(title: str) -> Iterator[OnEvent]:
    # Imported here: rich takes longer to load than most commands to run.
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, transient=True, expand=True) as bar:
        task = bar.add_task(title, total=None, detail="")

        def on_event(event: dict[str, Any]) -> None:
            done, total = _measure(event)
            bar.update(task, completed=done, total=total, detail=describe(event))

        yield on_event


def _measure(event: dict[str, Any]) -> tuple[float, float]:
    """Bytes when there are any to send, else files."""
    unit = "bytes" if event["total_bytes"] else "files"
    return event[f"done_{unit}"], event[f"total_{unit}"]


def describe(event: dict[str, Any]) -> str:
    """Bytes, rate, time left and the names being sent."""
    parts = [f"{format_size(event['done_bytes'])} of {format_size(event['total_bytes'])}"]
    if event["rate_bytes"]:
        parts.append(f"{format_size(event['rate_bytes'])}/s")
    if event["seconds_left"] is not None:
        parts.append(f"{format_duration(event['seconds_left'])} left")
    names = [output.shown(os.path.basename(path)) for path in event["sending"]]
    if names:
        more = f" +{len(names) - 2}" if len(names) > 2 else ""
        parts.append(", ".join(names[:2]) + more)
    return " · ".join(parts)
