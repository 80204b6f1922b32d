"""The base of objects that must be closed."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import Generic, Self, TypeVar


class Closing(ABC):  # noqa: B024 - what is below it has abstract methods
    """Closed by `close`, or at the end of a ``with`` block."""

    def close(self) -> None:
        """Release what was opened; by default, nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


T = TypeVar("T", bound=Closing)


class OpenTogether(Closing, Generic[T]):
    """Opened when first needed and closed together; may be opened again.

    :param each: opens one after the other, by name.
    """

    def __init__(self, each: Callable[[], Iterable[tuple[str, T]]]) -> None:
        self._each = each
        self._stack = ExitStack()
        self._open: dict[str, T] = {}

    def opened(self) -> dict[str, T]:
        """All of them, or none: if one cannot be opened, those that were are closed again."""
        if not self._open:
            with ExitStack() as opening:
                opened = {name: opening.enter_context(closing(resource)) for name, resource in self._each()}
                self._stack, self._open = opening.pop_all(), opened
        return self._open

    def close(self) -> None:
        self._open = {}
        self._stack.close()
