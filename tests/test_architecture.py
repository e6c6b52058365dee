"""The rules of docs/ARCHITECTURE.md that a parser can check. Each failure says why the rule is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tierfs"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = {
    "errors": 0, "model": 0, "threads": 0,
    "osio": 1, "config": 1,
    "order": 2, "groups": 2, "policies": 2, "health": 2, "capacity": 2, "local": 2, "journal": 2,
    "shared": 2,
    "writeback": 3, "mend": 3,
    "namespace": 4,
    "kernel": 5, "control": 5, "supervisor": 5,
    "daemon": 6,
    "cli": 7,
}  # fmt: skip

CLIENT_MODULES = ("client", "discovery", "protocol", "requests", "results", "supervision")
"""Modules of `control` that run in clients: as cheap to import, and as low, as layer 1."""

CLIENT_SIDE = tuple(f"tierfs.control.{name}" for name in CLIENT_MODULES)

CLI_MAY_IMPORT = {
    "tierfs.config", "tierfs.errors", "tierfs.mend", "tierfs.osio", "tierfs.policies",
    "tierfs.shared.digest", "tierfs.shared.layout",
    *(f"tierfs.control.{name}" for name in CLIENT_MODULES),
}  # fmt: skip

WITHOUT_TRIO = (
    "model.py",
    "config/",
    "osio/",
    "order/",
    "groups/",
    "health/",
    "capacity/",
    "policies/",
    "local/",
    "cli/",
    "namespace/overlay/tree.py",
)

PURE = ("order/", "groups/", "health/", "capacity/", "policies/", "namespace/overlay/tree.py")
IMPURE_MODULES = {
    "os",
    "io",
    "pathlib",
    "shutil",
    "socket",
    "time",
    "datetime",
    "threading",
    "trio",
}

FILE_LINES = 500
FUNCTION_LINES = 60

FILE_SYSTEM_CALLS = {
    "access", "chdir", "chmod", "chown", "copy_file_range", "dup", "dup2", "fchmod",
    "fchown", "fdatasync", "fstat", "fstatvfs", "fsync", "ftruncate", "getxattr", "lchown", "link",
    "listdir", "listxattr", "lseek", "lstat", "makedirs", "mkdir", "mkfifo", "mknod", "open",
    "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "read", "readlink",
    "remove", "removexattr", "rename", "renames", "replace", "rmdir", "scandir", "sendfile",
    "setxattr", "stat", "statvfs", "symlink", "sync", "truncate", "unlink", "utime", "walk",
    "write",
}  # fmt: skip
PATH_CALLS = {
    "exists", "getmtime", "getsize", "isdir", "isfile", "islink", "ismount", "lexists", "realpath",
    "samefile",
}  # fmt: skip
PATHLIB_CALLS = {
    "is_dir", "is_file", "is_symlink", "iterdir", "read_bytes", "read_text", "symlink_to",
    "write_bytes", "write_text",
}  # fmt: skip

MAY_CALL_FILE_SYSTEM = {
    "osio/": "this is the room for it",
    "config/load.py": "reads the one file that it was told to read",
    "control/": "the runtime directory under /run: no tier, no step of the protocol",
    "cli/": "runs in the user's process, on paths that the user gave",
    "kernel/device.py": "/dev/fuse alone: no tier, no step of the protocol",
    "supervisor/": "/dev/fuse, its state file, pipes: no tier, no step of the protocol",
    "daemon/": "mounting, descriptors it was started with, /proc",
}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `from tierfs.x import y` counts as tierfs.x.y too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute: one spelling each"
            yield node.lineno, str(node.module)
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "tierfs" and len(parts) > 1 and parts[1] in LAYERS else None


def top_imports(tree: ast.AST) -> set[str]:
    return {name.split(".")[0] for _, name in imported_modules(tree)}


def starts_with_any(path: Path, prefixes: tuple[str, ...]) -> bool:
    return relative(path).startswith(prefixes)


every_file = pytest.mark.parametrize("path", FILES, ids=relative)


def in_rooms(*prefixes: str) -> pytest.MarkDecorator:
    chosen = [path for path in FILES if starts_with_any(path, prefixes)]
    return pytest.mark.parametrize("path", chosen, ids=relative)


@every_file
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    room = parts[0]
    if room not in LAYERS or room == "cli":
        return
    client_side = room == "control" and parts[1] in CLIENT_MODULES
    layer = 2 if client_side else LAYERS[room]
    for line, name in imported_modules(parsed(path)):
        other = room_of(name)
        if other is None or other == room:
            continue
        below = 2 if name.startswith(CLIENT_SIDE) else LAYERS[other]
        assert below < layer, (
            f"{path}:{line}: {room} imports {name}: a room knows only what is below it; what it "
            f"has to say upwards goes through a callable that it got in its constructor"
        )


@in_rooms("cli/")
def test_the_command_line_is_a_thin_client(path: Path) -> None:
    for line, name in imported_modules(parsed(path)):
        room = room_of(name)
        if room in (None, "cli"):
            continue
        ok = any(name == allowed or name.startswith(allowed + ".") for allowed in CLI_MAY_IMPORT)
        package_only = name in {"tierfs.control", "tierfs.shared"}
        assert ok or package_only, (
            f"{path}:{line}: cli imports {name}: a command asks the daemon; it must start fast, "
            f"without FUSE and without trio"
        )


@every_file
def test_pyfuse3_stays_at_the_edge(path: Path) -> None:
    if "pyfuse3" in top_imports(parsed(path)):
        assert starts_with_any(path, ("kernel/", "daemon/")), (
            f"{path}: only kernel and daemon may know pyfuse3: everything else runs in tests "
            f"without a mount"
        )


@in_rooms(*WITHOUT_TRIO, *(f"control/{name}.py" for name in CLIENT_MODULES))
def test_no_trio_where_nothing_may_wait(path: Path) -> None:
    assert "trio" not in top_imports(parsed(path)), (
        f"{path}: blocking rooms are plain functions that their caller runs in a thread, and "
        f"clients start without an event loop"
    )


@in_rooms(*PURE)
def test_decisions_are_pure(path: Path) -> None:
    tree = parsed(path)
    used = top_imports(tree) & IMPURE_MODULES
    assert not used, f"{path}: imports {used}: decisions neither do I/O nor read a clock"
    waits = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef | ast.Await)]
    assert not waits, f"{path}:{waits}: a decision is one synchronous step; what awaits can be old"


def file_system_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield node.lineno, "open"
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in FILE_SYSTEM_CALLS:
                yield node.lineno, f"os.{name}"
            case ast.Attribute(value=ast.Name(id="shutil"), attr=name):
                yield node.lineno, f"shutil.{name}"
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=name
            ) if name in PATH_CALLS:
                yield node.lineno, f"os.path.{name}"
            case ast.Attribute(attr=name) if name in PATHLIB_CALLS:
                yield node.lineno, f".{name}"


@every_file
def test_file_system_calls_go_through_osio(path: Path) -> None:
    if starts_with_any(path, tuple(MAY_CALL_FILE_SYSTEM)):
        return
    calls = list(file_system_calls(parsed(path)))
    assert not calls, (
        f"{path}: {calls}: every file system call has a step label in osio, so that tests can "
        f"fail, stall or kill at each of them"
    )


@pytest.mark.parametrize("prefix", MAY_CALL_FILE_SYSTEM)
def test_exceptions_to_osio_are_used(prefix: str) -> None:
    files = [path for path in FILES if relative(path).startswith(prefix)]
    assert any(any(file_system_calls(parsed(path))) for path in files), (
        f"{prefix} may call the file system itself but does not: take it off the list"
    )


@every_file
def test_file_has_one_purpose(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{path}: {lines} lines: which two files is this?"


@every_file
def test_functions_fit_on_a_screen(path: Path) -> None:
    long = {
        f"{node.name}, line {node.lineno}": length
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long, f"{path}: {long}: a function is read in one look"


@every_file
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{path}: the first line of a module says its purpose"


def test_every_room_is_in_the_table() -> None:
    rooms = {relative(path).split("/")[0].removesuffix(".py") for path in FILES}
    assert rooms - {"__init__", "__main__"} <= LAYERS.keys(), "a new room needs its layer"
