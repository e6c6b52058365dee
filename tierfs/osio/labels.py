"""The seam itself: what happens before and after every labelled system call."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Labelled")

EXPECTED = frozenset({errno.ENOENT, errno.EEXIST, errno.ENODATA, errno.EAGAIN})
"""Answers rather than failures: they come often, so nothing is looked up for their message."""


class Labelled:
    """Base of :class:`tierfs.osio.OS`: the two hooks that tests override."""

    def _enter(self, step: str, *detail: object) -> None:
        """Called before each system call with its label and its arguments. Does nothing here."""

    def _allowed(self, step: str, length: int) -> int:
        """How many of `length` bytes the next write may take; tests make it shorter."""
        return length


def labelled(method: Callable[Concatenate[S, str, P], R]) -> Callable[Concatenate[S, str, P], R]:
    """Make `method(self, step, …)` pass through the seam.

    An `OSError` gets the label as a note, and the path of its descriptor where it names no path.
    """

    @functools.wraps(method)
    def call(self: S, step: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            self._enter(step, *args)
            return method(self, step, *args, **kwargs)
        except OSError as error:
            if error.filename is None and error.errno not in EXPECTED and args:
                _name_descriptor(error, args[0])
            error.add_note(f"at step {step}")
            raise

    return call


def _name_descriptor(error: OSError, descriptor: object) -> None:
    if isinstance(descriptor, int) and error.errno != errno.EBADF:
        try:
            error.filename = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return
