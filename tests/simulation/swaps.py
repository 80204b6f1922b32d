"""Attributes of modules and classes that have another value while a history is played. As `mock.patch.object`,
but cheaper: a history needs dozens of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_NONE = object()


@contextmanager
def swapped(swaps: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """:param swaps: the module or class, the name of the attribute, and its value meanwhile."""
    before = [(where, name, vars(where).get(name, _NONE)) for where, name, _ in swaps]
    try:
        for where, name, instead in swaps:
            setattr(where, name, instead)
        yield
    finally:
        for where, name, original in reversed(before):
            if original is _NONE:
                delattr(where, name)
            else:
                setattr(where, name, original)
