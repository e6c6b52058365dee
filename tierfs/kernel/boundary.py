"""The one error boundary: whatever a handler raises, the kernel gets an errno.

pyfuse3 catches FUSEError only; anything else would end the mount (KERNEL_PATH.md).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pyfuse3

from tierfs.errors import to_errno
from tierfs.kernel import wire
from tierfs.kernel.wire import Request
from tierfs.namespace.outage.asking import on_behalf_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def handler(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorates a request handler: every exception becomes a FUSEError."""

    @functools.wraps(call)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        last = args[-1] if args else None
        thread = last.pid if isinstance(last, pyfuse3.RequestContext) else 0
        try:
            with on_behalf_of(thread):
                return await call(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            log.debug("%s: %s", call.__name__, error)
            raise pyfuse3.FUSEError(to_errno(error)) from error
        except Exception as error:
            log.exception("%s failed", call.__name__)
            raise pyfuse3.FUSEError(to_errno(error)) from error

    return guarded


def refusal(request: Request, error: Exception) -> bytes:
    """The reply to `request` when `error` came of it: for what is not answered by pyfuse3.

    Whoever answers one catches every exception: one that gets past would end the mount.
    """
    if isinstance(error, OSError):
        log.debug("request %d: %s", request.opcode, error)
    else:
        log.error("request %d failed", request.opcode, exc_info=error)
    return wire.error_reply(request.unique, to_errno(error))


def silent(call: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """Decorates `forget`, which may raise nothing at all."""

    @functools.wraps(call)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await call(*args, **kwargs)
        except Exception:
            log.exception("%s failed", call.__name__)

    return guarded
