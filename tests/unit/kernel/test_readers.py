"""Who is told the attributes of what it lists."""

from tierfs.kernel.readers import ALL, FEW, FIRST, MOST_PROVEN, PATIENCE, READERS, Readers

FIND, DU = 11, 22


def _lists(readers: Readers, thread: int, directory: int, *, looks: bool) -> bool:
    """Whether a thread that lists `directory` gets attributes; it looks at a file there, or not."""
    readers.opens(thread, directory)
    told = readers.attributed(thread) > 0
    if told:
        readers.probes(thread, directory, b"first")
    readers.told(thread, 100)
    readers.looks_up(thread, directory, b"below", is_directory=True)
    if looks:
        readers.looks_up(thread, directory, b"first", is_directory=False)
    return told


def test_who_never_looks_gets_names_only_until_it_looks() -> None:
    readers = Readers()
    assert [_lists(readers, FIND, n, looks=False) for n in (1, 2, 9)] == [True, False, False]
    assert not _lists(readers, FIND, 3, looks=True)
    assert _lists(readers, FIND, 4, looks=True)


def test_who_looks_keeps_getting_attributes() -> None:
    readers = Readers()
    assert all(_lists(readers, DU, n, looks=True) for n in range(5))
    assert not all(_lists(readers, FIND, n, looks=False) for n in range(5))
    assert _lists(readers, DU, 5, looks=True)


def test_a_directory_without_files_says_nothing() -> None:
    readers = Readers()
    for directory in range(1, 4):
        readers.opens(FIND, directory)
        readers.looks_up(FIND, 1, b"below", is_directory=True)
    assert readers.attributed(FIND)


def test_who_was_never_seen_to_look_gets_the_attributes_of_a_few() -> None:
    readers = Readers()
    readers.opens(FIND, 1)
    readers.probes(FIND, 1, b"first")
    readers.told(FIND, FIRST - 1)
    assert readers.attributed(FIND) == 1
    readers.told(FIND, 1)
    assert not readers.attributed(FIND)
    readers.looks_up(FIND, 1, b"first", is_directory=False)
    assert readers.attributed(FIND) == ALL, "it looked while it read"


def test_within_one_large_directory_it_shows_after_a_while() -> None:
    readers = Readers()
    assert _lists(readers, DU, 1, looks=True)
    readers.opens(DU, 2)
    readers.probes(DU, 2, b"first")
    readers.told(DU, PATIENCE)
    assert readers.attributed(DU)
    readers.told(DU, 1)
    assert not readers.attributed(DU)


def test_only_the_last_readers_are_remembered() -> None:
    readers = Readers()
    _lists(readers, FIND, 1, looks=False)
    for thread in range(100, 100 + READERS):
        readers.opens(thread, 2)
    readers.opens(FIND, 99)
    assert readers.attributed(FIND)


def test_who_looked_everywhere_is_probed_less_often() -> None:
    readers = Readers()
    probed = []
    for directory in range(1, 65):
        readers.opens(DU, directory)
        assert readers.attributed(DU)
        probed.append(readers.wants_probe(DU))
        if probed[-1]:
            readers.probes(DU, directory, b"first")
            readers.looks_up(DU, directory, b"first", is_directory=False)
        readers.told(DU, 10)
    assert probed[0]
    assert any(probed[-(MOST_PROVEN**2) :])
    assert 8 <= sum(probed) <= 16
    readers.opens(DU, 101)
    readers.opens(DU, 102)
    assert not readers.wants_probe(DU)
    readers.told(DU, FEW)
    assert readers.wants_probe(DU), "within a large directory it is"


def test_who_opens_a_directory_twice_has_not_looked_away() -> None:
    """`rm` sees whether a directory is empty before it reads it and removes what is in it."""
    readers = Readers()
    for directory in range(1, 5):
        assert _lists(readers, DU, directory, looks=False)
        assert _lists(readers, DU, directory, looks=True)


def test_who_opens_a_directory_twice_removes_what_is_in_it() -> None:
    readers = Readers()
    _lists(readers, DU, 1, looks=False)
    assert not readers.attributed(DU)
    readers.opens(DU, 1)
    assert readers.attributed(DU) == ALL
