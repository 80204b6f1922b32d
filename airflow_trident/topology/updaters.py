"""Built-in updaters for `partition_persist`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_trident.plan.states import MapState


class MapPut:
    """Puts each tuple's value fields under its key fields; of equal keys in a batch any one wins."""

    def __init__(self, staged: tuple[str, ...], keys: tuple[str, ...], values: tuple[str, ...]) -> None:
        self._keys = tuple(staged.index(name) for name in keys)
        self._values = tuple(staged.index(name) for name in values if name in staged)

    def __call__(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        last = {tuple(row[i] for i in self._keys): tuple(row[i] for i in self._values) for row in tuples}
        state.multi_put(list(last), list(last.values()))
