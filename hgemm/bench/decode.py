"""Reads plain JSON values into dataclasses, strictly: what does not fit raises an error that names where and why."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from hgemm.program import printable

T = TypeVar("T")

LARGEST = 2**63
"""Every count lies below: what is larger is no measurement, and no float that anybody computes with."""


class SchemaError(ValueError):
    """A value that does not fit the schema; the message begins with its place, as in ``cases[0].rows[2].timing``."""


def decode(kind: type[T], value: object, where: str = "") -> T:
    """Reads ``value`` as the dataclass ``kind``.

    Fields with defaults may be missing, unknown fields may not be there, numbers must be finite and integers below
    LARGEST, text must be on one line and without control characters, and no type is converted except an integer where a
    float is wanted. Raises SchemaError.
    """
    return typing.cast(T, _decode(kind, value, where))


def _decode(kind: Any, value: object, where: str) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    if origin in (Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _error(where, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if origin is list:
        if not isinstance(value, list):
            raise _error(where, "a list", value)
        return [_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise _error(where, "an object", value)
        keys = [_scalar(str, key, f"a name in {where}") for key in value]
        return {key: _decode(arguments[1], value[key], f"{where}.{key}") for key in keys}
    return _scalar(kind, value, where)


def _dataclass(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _error(where, "an object", value)
    hints = _hints(kind)
    prefix = f"{where}." if where else ""
    known = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key in value:
        if key not in known:
            raise SchemaError(f"{prefix}{_short(printable(key))}: no such field; there are {', '.join(known)}")
    for name, entry in known.items():
        required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise SchemaError(f"{prefix}{name}: missing")
    return kind(**{name: _decode(hints[name], value[name], prefix + name) for name in known if name in value})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields; reading them takes longer than reading a row."""
    return typing.get_type_hints(kind)


def _union(kinds: tuple[Any, ...], value: object, where: str) -> object:
    if value is None and type(None) in kinds:
        return None
    candidates = [kind for kind in kinds if kind is not type(None)]
    if len(candidates) == 1:
        return _decode(candidates[0], value, where)
    for kind in candidates:
        try:
            return _decode(kind, value, where)
        except SchemaError:
            continue
    raise _error(where, " or ".join(_describe(kind) for kind in candidates), value)


def _scalar(kind: Any, value: object, where: str) -> object:
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        raise _error(where, "a number below 2^63", value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # bool is an int to isinstance, and never a count here.
    if type(value) is not kind:
        raise _error(where, _describe(kind), value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _error(where, "a finite number", value)
    if isinstance(value, str) and not value.isprintable():  # it stands on terminals, in tables and in XML
        raise _error(where, "text without control characters", value)
    return value


def _describe(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(kind, "a list" if get_origin(kind) is list else str(kind))


def _error(where: str, expected: str, value: object) -> SchemaError:
    return SchemaError(f"{where or 'the file'}: expected {expected}, found {_short(repr(value))}")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
