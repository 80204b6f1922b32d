"""Built-in updaters for `partition_persist`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_trident.contracts.updater import MapState
from airflow_trident.operations.equality import canonical_key, same
from airflow_trident.operations.newest import two_values


@dataclass(frozen=True, kw_only=True)
class MapPut:
    """Stores each tuple's value fields under its key fields.

    :param state: name of the state, for the error.
    :param staged: the fields of the tuples, including `keys` and `values`.
    """

    state: str
    staged: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    takes_groups: ClassVar[bool] = True
    """May several transactions call it one after the other, in one step of the store?"""

    def __call__(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        """:raises UserCodeError: two tuples of the batch have the same key and different values."""
        found = self.chosen(tuples)
        state.multi_put(list(found), list(found.values()))

    def chosen(self, tuples: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The value of each key.

        :raises UserCodeError: as `__call__`. The store cannot know which one is newer, since engines give no order.
        """
        keys, values = ([self.staged.index(name) for name in names] for names in (self.keys, self.values))
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in tuples:
            value = tuple([row[place] for place in values])
            key = canonical_key([row[place] for place in keys])
            known = found.setdefault(key, value)
            if known is not value and not same(known, value):
                raise two_values(
                    self.state,
                    dict(zip(self.keys, key, strict=True)),
                    dict(zip(self.values, known, strict=True)),
                    dict(zip(self.values, value, strict=True)),
                    "and different values, and nothing says which one counts",
                    'Name the fields that say which is newer, as in partition_persist(..., order_by="updated_at"), or '
                    "aggregate by the key first.",
                )
        return found
