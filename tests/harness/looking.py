"""Looking at something again and again while a test goes on."""

from __future__ import annotations

import threading
from typing import Self


class Looking:
    """Calls `look` in a thread of its own from the ``with`` on, and once more at its end.

    What a look raises ends the looking, and is raised at the end of the ``with``.

    Attributes:
        pause: seconds between two looks.
    """

    pause = 0.1

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="looking", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: object, failure: BaseException | None, __: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and failure is None:
            raise self._failure

    def _loop(self) -> None:
        try:
            while not self._over.wait(self.pause):
                self.look()
            self.look()
        except BaseException as error:
            self._failure = error

    def look(self) -> None:
        """One look."""
        raise NotImplementedError
