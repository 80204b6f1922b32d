"""Rows in groups, by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def grouped(table: pa.Table, keys: Sequence[str], verbs: Sequence[tuple[str, str]]) -> list[pa.ChunkedArray]:
    """One row for each group, in order of appearance: the columns of the keys, then one for each verb.

    Arrow names a result ``{field}_{verb}``, which may be the name of another field. So fields have numbers here.

    :param verbs: field and function of Arrow.
    """
    names = list(dict.fromkeys((*keys, *(name for name, _ in verbs))))
    number = {name: str(place) for place, name in enumerate(names)}
    by = [number[key] for key in keys]
    what = [(number[name], verb) for name, verb in verbs]
    numbered = table.select(names).rename_columns(list(number.values()))
    found = numbered.group_by(by, use_threads=False).aggregate(what)
    return [found.column(name) for name in (*by, *(f"{name}_{verb}" for name, verb in what))]
