"""Failures that are a lack of memory, whatever they call themselves.

The one thing a reader would get wrong: few of them are a MemoryError. A library that finds no room is an ImportError,
torch and a thread that cannot begin are RuntimeErrors, and each may be the cause of another error. Whatever is imported
here is imported at once: when the functions are called nothing may be loadable any more.
"""

import errno
import sys
from pathlib import PurePath

from app.report import format_bytes

if sys.platform != "win32":
    import resource

_SIGNS = (
    *("failed to map segment", "cannot allocate memory", "can't allocate memory", "not enough memory"),
    "can't start new thread",
)
"""What the loader, the system, torch and Python say of it, in lower case."""


def lacks_memory(error: BaseException) -> bool:
    """Whether `error`, or what caused it, is a lack of memory or address space."""
    return _cause(error) is not None


def told(error: BaseException) -> tuple[str, str]:
    """A lack of memory as a message and what to do about it."""
    cause = _cause(error)
    what = "there is too little memory to go on"
    if isinstance(error, ImportError):
        library = PurePath(str(cause).partition(":")[0]).name
        what = "there is too little memory to load the libraries" + (f" ({library})" if ".so" in library else "")
    limit_bytes = _address_space_bytes()
    if limit_bytes is None:
        return what, "Close other programs, or plan with less: `artesian plan --ram 8GB` says what would fit."
    return (
        f"{what}: address space is limited to {format_bytes(limit_bytes)}",
        "Lift the limit with `ulimit -v unlimited`; --ram is what bounds memory here.",
    )


def _cause(error: BaseException) -> BaseException | None:
    """The error in the chain of causes that is a lack of memory."""
    seen: list[BaseException] = []
    todo: BaseException | None = error
    while todo is not None and todo not in seen:
        if isinstance(todo, MemoryError) or (isinstance(todo, OSError) and todo.errno == errno.ENOMEM):
            return todo
        if isinstance(todo, ImportError | RuntimeError | OSError) and any(sign in str(todo).lower() for sign in _SIGNS):
            return todo
        seen.append(todo)
        todo = todo.__cause__ or todo.__context__
    return None


def _address_space_bytes() -> int | None:
    """The limit on this process's address space; None where there is none."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
