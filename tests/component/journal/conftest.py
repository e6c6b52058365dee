from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tierfs.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def open_journal(path: Path) -> Iterator[Callable[..., Journal]]:
    """Open journals, by default at `path`, that are closed at the end."""
    journals: list[Journal] = []

    def open_one(*arguments: object, at: Path = path, **options: bool) -> Journal:
        journals.append(Journal.open(at, *arguments, **options))  # type: ignore[arg-type]
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


@pytest.fixture
def journal(open_journal: Callable[..., Journal]) -> Journal:
    return open_journal()
