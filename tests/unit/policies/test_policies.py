"""Which policy a path has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tierfs.config import PolicyRule, decode, encode, load, read_file
from tierfs.errors import ConfigError
from tierfs.policies import Policies, PolicyKind, matcher


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.log", ["x.log", "a/b/.log", "a.log/b.log"], ["x.logs", "x.log/y", "xlog"]),
        ("run?", ["run1", "d/runx"], ["run", "run12", "run/"]),
        ("data[0-9!]", ["data1", "x/data!"], ["dataa", "data"]),
        ("data[!a]", ["datab"], ["dataa", "data/"]),
        ("data[", ["data["], ["data"]),
        ("sets/", ["sets/a", "sets/a/b"], ["sets", "x/sets/a", "setsx/a"]),
        ("/sets/", ["sets/a"], ["sets"]),
        ("sets/**", ["sets/a/b"], ["sets"]),
        ("a/*.pt", ["a/x.pt"], ["a/b/x.pt", "x.pt", "b/a/x.pt"]),
        ("a/**/x", ["a/x", "a/b/x", "a/b/c/x"], ["a/bx", "x"]),
        ("**/tmp/", ["tmp/a", "x/tmp/a/b"], ["tmp", "x/tmp", "xtmp/a"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)", "a.bb(c)"]),
        ("näh*", ["nähe"], ["nahe"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = re.compile(matcher(pattern), re.DOTALL)
    assert [path for path in matching if not compiled.fullmatch(path.encode())] == []
    assert [path for path in others if compiled.fullmatch(path.encode())] == []


def test_any_bytes_can_be_in_a_name() -> None:
    policies = Policies([PolicyRule("a/*x", "writethrough"), PolicyRule("(b)|(c)", "log")])
    assert policies.of((b"a", b"\xff\nx")).kind is PolicyKind.WRITETHROUGH
    assert policies.of((b"(b)|(c)",)).kind is PolicyKind.LOG
    assert policies.of((b"b",)).kind is PolicyKind.WRITEBACK


def test_the_first_rule_counts_and_those_given_come_before_the_built_in_ones() -> None:
    policies = Policies(
        [
            PolicyRule("keep/*.log", "writeback"),
            PolicyRule("keep/", "writethrough"),
            PolicyRule("*.pt", "writethrough", close="local"),
            PolicyRule("meta/", "writeback", fsync="committed"),
        ]
    )
    assert policies.of((b"keep", b"a.log")).kind is PolicyKind.WRITEBACK
    assert policies.of((b"keep", b"a", b"b.log")).kind is PolicyKind.WRITETHROUGH
    assert policies.of((b"x.log",)).kind is PolicyKind.LOG
    assert policies.of((b"x.log",)).pattern == "*.log"
    assert policies.of((b"d", b"events.out.tfevents.17")).kind is PolicyKind.LOG
    plain = policies.of((b"x.bin",))
    assert (plain.kind, plain.pattern) == (PolicyKind.WRITEBACK, "")
    assert not plain.fsync_committed
    through = policies.of((b"x.pt",))
    assert (through.fsync_committed, through.close_committed) == (True, False)
    synced = policies.of((b"meta", b"x"))
    assert (synced.fsync_committed, synced.close_committed) == (True, False)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("policies = 3", "policies = 3: must be [[policies]] tables"),
        ('[[policies]]\npolicy = "log"', "entry 1: pattern is not set"),
        ('[[policies]]\npattern = "x"', "entry 1: policy is not set"),
        ('[[policies]]\npattern = "/"\npolicy = "log"', "entry 1: pattern must be a shell"),
        ('[[policies]]\npattern = "x"\npolicy = "lag"', "did you mean 'log'?"),
        ('[[policies]]\npattern = "x"\npolicy = "log"\nclos = "local"', "did you mean 'close'?"),
        (
            '[[policies]]\npattern = "x"\npolicy = "writeback"\nclose = "soon"',
            "close must be local or committed",
        ),
        (
            '[[policies]]\npattern = "x"\npolicy = "log"\nclose = "committed"',
            "close cannot be set with policy log",
        ),
    ],
)
def test_refused(tmp_path: Path, entry: str, said: str) -> None:
    file = tmp_path / "tierfs.toml"
    file.write_text(entry + "\n")
    with pytest.raises(ConfigError) as caught:
        read_file(file)
    assert said in str(caught.value)


def test_rules_cross_the_process_border() -> None:
    rule = {"pattern": "meta/", "policy": "writeback", "fsync": "committed"}
    settings = load(None, {"local": "/nvme", "shared": "/nfs", "policies": [rule]})
    assert settings.policies == (PolicyRule("meta/", "writeback", fsync="committed"),)
    assert decode(encode(settings)) == settings


def test_rules_that_speak_of_digits_tell_them_apart() -> None:
    for pattern in ("run7/*", "run[5-9]/*"):
        policies = Policies((PolicyRule(pattern, "scratch"),))
        found = {number: policies.of((b"run%d" % number, b"f")).kind for number in range(10)}
        which = {7} if pattern == "run7/*" else set(range(5, 10))
        assert {number for number, kind in found.items() if kind is PolicyKind.SCRATCH} == which
    assert Policies().of((b"out-12.log",)).kind is PolicyKind.LOG
    assert Policies().of((b"out-34.txt",)).kind is PolicyKind.WRITEBACK
