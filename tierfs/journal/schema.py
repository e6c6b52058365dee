"""The tables of journal.db: the one reference for every column and every sentinel.

Integers that come from a file system or the kernel (inodes, sizes, times, request numbers) may
use all 64 bits; SQLite's integers are signed, so they are stored as two's complement. A column
that is `NULL` means "none" wherever the model says None; no other value stands for nothing.
Names are BLOBs: any bytes but ``/`` and NUL.
"""

from __future__ import annotations

APPLICATION_ID = 0x54494552
"""``PRAGMA application_id``: the letters TIER, so that file(1) and we tell whose database it is."""

FORMAT_VERSION = 1
"""``PRAGMA user_version``. Another version is refused, never guessed at."""

NUMBER_LIMIT = "number_limit"
ROW_LIMIT = "row_limit"
AHEAD = "ahead"
APPLIED = "applied"
TRANSACTION = "transaction"

TABLES = """
-- Small facts, by key.
--   number_limit, row_limit   (INTEGER) every number, every row id handed out is below it
--   ahead                     (BLOB) where posts stand that are not here yet, see ahead.py
--   applied                   (INTEGER) number of the last of those that is
--   transaction               (INTEGER) how many transactions changed something
--   others                    (BLOB) set by the daemon: shared_id, shared_inode
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- One row per op that is not committed yet. A committed or dropped op has no row.
CREATE TABLE op (
    row                INTEGER PRIMARY KEY, -- identity; never reused
    number             INTEGER NOT NULL,    -- place in the order
    first              INTEGER NOT NULL,    -- number of its first FLUSH; 0: none yet
    kind               TEXT NOT NULL,       -- model.OpKind
    state              TEXT NOT NULL,       -- model.OpState
    mark               TEXT,                -- model.Mark; NULL: in the order
    object             INTEGER NOT NULL,    -- object id
    parent             INTEGER NOT NULL,    -- directory id; 1: the root
    name               BLOB NOT NULL,
    parent2            INTEGER,             -- LINK, RENAME: where from; else NULL
    name2              BLOB,
    timestamp_ns       INTEGER NOT NULL,    -- when it was issued, CLOCK_REALTIME
    changed_ns         INTEGER NOT NULL,    -- least mtime of its directory afterwards; 0: none
    base_inode         INTEGER,             -- shared entry meant; NULL: made by an op before
    overwrites         INTEGER NOT NULL,    -- 0 or 1
    fields             BLOB NOT NULL,       -- words separated by NUL (docs/FORMAT.md); else empty
    flags              INTEGER NOT NULL,    -- RENAME: flags of renameat2; REOPEN: how; else 0
    request_connection INTEGER,             -- the kernel's request; NULL, NULL: none
    request_unique     INTEGER,
    size               INTEGER NOT NULL,    -- bytes to send
    error              TEXT,                -- of the last attempt, for people; NULL: none
    attempts           INTEGER NOT NULL,    -- failed attempts so far
    digest             TEXT,                -- of what is or was staged, "KIND:64MiB:HEX"
    staged_inode       INTEGER,             -- not NULL: the final call may have happened
    durable            INTEGER NOT NULL     -- 1: this row and the object were synced once
);

-- Local objects that an op needs.
CREATE TABLE object (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,      -- model.Kind
    data       INTEGER NOT NULL,   -- 1: content is local; 0: a stub, content is that of base_inode
    base_inode INTEGER             -- shared entry of its last committed version; NULL: none
);

-- Where directories stand on the shared tier now.
CREATE TABLE directory (
    id     INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    name   BLOB NOT NULL,
    inode  INTEGER,                -- NULL: its MKDIR is pending
    tagged INTEGER NOT NULL        -- 1: carries the id as xattr user.tierfs.id; more: carries that
);

-- Local copies of committed files.
CREATE TABLE clean (
    inode    INTEGER PRIMARY KEY,  -- on the shared tier
    size     INTEGER NOT NULL,     -- size, mtime_ns, ctime_ns: the shared file's when recorded
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    object   INTEGER NOT NULL,     -- the local object that is the copy
    digest   TEXT,                 -- NULL: not known
    bytes    INTEGER NOT NULL,     -- what it takes locally
    used_ns  INTEGER NOT NULL      -- last use, CLOCK_REALTIME
);
CREATE INDEX clean_by_use ON clean (used_ns);

-- Denormalised: count and bytes of `clean`, kept by the triggers; one row. (Counting a million
-- rows at each question would hold up the closes that wait in the same thread.)
CREATE TABLE clean_total (count INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO clean_total VALUES (0, 0);
CREATE TRIGGER clean_added AFTER INSERT ON clean BEGIN
    UPDATE clean_total SET count = count + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER clean_removed AFTER DELETE ON clean BEGIN
    UPDATE clean_total SET count = count - 1, bytes = bytes - old.bytes;
END;
CREATE TRIGGER clean_resized AFTER UPDATE OF bytes ON clean BEGIN
    UPDATE clean_total SET bytes = bytes - old.bytes + new.bytes;
END;
"""

LATER_TABLES = """
-- Unsealed checkpoints that this member wrote in. Made at every open, like the next tables: a
-- journal of an earlier version has them not.
CREATE TABLE IF NOT EXISTS checkpoint (
    id      INTEGER PRIMARY KEY, -- its directory id
    made    INTEGER NOT NULL,    -- place among its siblings: the number of an op
    expect  INTEGER,             -- files that `tierfs commit` asked for; -1: any; NULL: not asked
    older   INTEGER,             -- inode of the sealed generation under its name; NULL: none
    writers TEXT NOT NULL        -- JSON: [[process, start time, state, wrote, closed, removed,
                                 -- [end markers closed before it wrote over files; "/pointer": a
                                 -- pointer named it before that]], ...]
);

-- Shared files and directories that are pinned: the local copies of the files, and of what is
-- committed below the directories, are not evicted.
CREATE TABLE IF NOT EXISTS pin (
    inode     INTEGER PRIMARY KEY, -- on the shared tier
    directory INTEGER NOT NULL     -- 0 or 1
);

-- Requests of the kernel that are carried out and perhaps not answered yet, of the present mount.
-- A worker that died in between is followed by one that is asked again.
CREATE TABLE IF NOT EXISTS request (
    request_unique INTEGER PRIMARY KEY
);
"""
