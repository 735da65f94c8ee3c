"""Records to JSON values and back. What does not fit the record gives None: a figure of a stranger's file, or of a
newer version, is not worth a failure.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")


class _Misfit(Exception):  # noqa: N818 - it never leaves this module
    """The value is not of the type."""


def to_plain(record: Any) -> dict[str, Any] | None:
    """A frozen record as a JSON object; None stays None."""
    return None if record is None else asdict(record)


def from_plain(kind: type[R], value: object) -> R | None:
    """The record of that type in `value`, or None. Fields it does not know are passed over."""
    try:
        made: R = _made(kind, value)
    except _Misfit:
        return None
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, value: object) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _first_fit(get_args(kind), value)
    if origin is Literal:
        return _require(value in get_args(kind), value)
    if origin in (tuple, list, Sequence):
        return _sequence(kind, value)
    if origin in (dict, Mapping):
        key, item = get_args(kind)
        _require(isinstance(value, dict), value)
        assert isinstance(value, dict)
        return {_made(key, k): _made(item, v) for k, v in value.items()}
    if is_dataclass(kind):
        return _record(kind, value)
    if kind is Any or kind is object:
        return value
    if kind is float:
        return _finite(value)
    if kind is type(None):
        return _require(value is None, value)
    return _require(isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool), value)


def _finite(value: object) -> float:
    """A number as a figure; 1e999 is read as infinity, and an integer may be too long for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit
    try:
        number = float(value)
    except OverflowError:
        raise _Misfit from None
    if not math.isfinite(number):
        raise _Misfit
    return number


def _require(fits: bool, value: object) -> object:
    if not fits:
        raise _Misfit
    return value


def _first_fit(kinds: Sequence[Any], value: object) -> Any:
    for kind in kinds:
        try:
            return _made(kind, value)
        except _Misfit:
            continue
    raise _Misfit


def _sequence(kind: Any, value: object) -> Any:
    if not isinstance(value, list):
        raise _Misfit
    inner = get_args(kind)
    if get_origin(kind) is tuple and Ellipsis not in inner:
        _require(len(inner) == len(value), value)
        return tuple(_made(one, item) for one, item in zip(inner, value, strict=True))
    made = (_made(inner[0], item) for item in value)
    return list(made) if get_origin(kind) is list else tuple(made)


def _record(kind: Any, value: object) -> Any:
    if not isinstance(value, dict):
        raise _Misfit
    hints, given = _hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _made(hints[field.name], value[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise _Misfit
    return kind(**given)
