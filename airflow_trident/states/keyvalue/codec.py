"""Keys and values of key-value states as JSON text: deterministic, the same in every process, never pickled."""

from __future__ import annotations

import json
from typing import Any

from airflow_trident.errors import CorruptRecordError
from airflow_trident.operations.equality import canonical

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode_key(key: Any) -> str:
    """Canonical text: equal texts are equal keys. Lists and tuples are one kind; -0.0 is 0.0.

    :raises ValueError: JSON cannot hold the key, or would change it.
    """
    plain = canonical(key)
    return _encode(plain, plain, "key")


def decode_key(text: str, namespace: str) -> Any:
    return _with_tuples(_decode(text, namespace, "key"))


def encode_value(value: Any) -> str:
    """:raises ValueError: JSON cannot hold the value, or would change it, as it does tuples."""
    return _encode(value, value, "value")


def decode_value(text: str, namespace: str) -> Any:
    return _decode(text, namespace, "value")


def _encode(plain: Any, value: Any, role: str) -> str:
    try:
        text = _compact(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the {role} {value!r:.80} of a state cannot be written as JSON ({error}): use texts, finite numbers, "
            "booleans, None, lists, and dicts with text keys"
        ) from error
    if not _same(json.loads(text), plain):
        raise ValueError(
            f"the {role} {value!r:.80} of a state would come back from JSON as {json.loads(text)!r:.80}: use lists "
            "for tuples and texts as keys of dicts"
        )
    return text


def _same(left: Any, right: Any) -> bool:
    """Equal values with equal types at every level: 1, 1.0 and True are three values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    return bool(left == right)


def _with_tuples(key: Any) -> Any:
    if isinstance(key, list):
        return tuple(map(_with_tuples, key))
    if isinstance(key, dict):
        return {name: _with_tuples(part) for name, part in key.items()}
    return key


def _decode(text: str, namespace: str, role: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise CorruptRecordError(
            f"a {role} of namespace {namespace!r} is damaged: {text!r:.80} is not JSON ({error})",
            "Restore the store from a copy, or rebuild the state.",
        ) from error
