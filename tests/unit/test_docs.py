"""The documents speak of what is there: files, tests, links, keys, log lines."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierfs.cli.app import cli
from tierfs.control.results import StatusResult

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEST_NAMES = {
    name for path in TESTS for name in re.findall(r"def (test_\w+)", path.read_text())
} | {path.name for path in TESTS}

LOGGED = ("warning", "error", "critical", "exception", "log")
SHORTEST_WORDS = 6
"""Of a format string: what is shorter (``%s: %s``) has its words from elsewhere."""


def section(document: str, heading: str) -> str:
    text = (ROOT / "docs" / document).read_text()
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_points_to_is_there(path: Path) -> None:
    text = path.read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if target.startswith("http"):
            continue
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"
    for module in re.findall(r"\b(?:\w+/)+\w+\.py\b", text):
        assert (ROOT / module).exists() or (ROOT / "tierfs" / module).exists(), module
    for words in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"tests/[\w/*.]+", words):
            assert list(ROOT.glob(words)), words
        elif re.fullmatch(r"test_[\w*]+(\.py)?", words):
            assert fnmatch.filter(TEST_NAMES, words), words


def test_every_promise_has_its_row_and_tests() -> None:
    rows = re.findall(
        r"^\| (G\d+) .*\| (.*) \|$", section("ARCHITECTURE.md", "What it promises"), re.M
    )
    assert [number for number, _ in rows] == [f"G{number}" for number in range(1, 13)]
    assert [number for number, tests in rows if "test" not in tests] == ["G12"], "not built"


def test_decisions_are_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for path in DECISIONS:
        number, title = path.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert f"| [{number}]({path.name}) | {title} |" in index
        assert int(path.name[:4]) == int(number)


def test_every_key_of_status_is_explained() -> None:
    keys = set(re.findall(r"`(\w+)`", section("OPERATIONS.md", "Keys of `tierfs status`")))
    missing = {field.name for field in dataclasses.fields(StatusResult)} - keys
    assert not missing


def test_every_command_is_in_the_readme() -> None:
    commands = re.findall(r"^\| .*\|", (ROOT / "README.md").read_text(), re.M)
    named = {word for row in commands for word in re.findall(r"`(\w+)[ `]", row)}
    assert set(cli.commands) <= named


def log_formats() -> Iterator[str]:
    for path in sorted((ROOT / "tierfs").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("log"), attr=attr), args=args):
                    if attr in LOGGED:
                        yield ast.literal_eval(args[1 if attr == "log" else 0])


@pytest.mark.parametrize("text", sorted(set(log_formats())))
def test_every_line_of_the_log_is_explained(text: str) -> None:
    pieces = [piece.strip() for piece in re.split(r"%\.?\d?\w|[():;,.]", text)]
    pieces = [piece for piece in pieces if len(piece) >= SHORTEST_WORDS]
    explained = section("OPERATIONS.md", "The log")
    assert not pieces or any(piece in explained for piece in pieces), text
