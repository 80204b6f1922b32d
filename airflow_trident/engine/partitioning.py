"""How the local engine spreads tuples over partitions: from Arrow tables to one table per partition.

The result depends on the batch alone, so a replay in another process has the same partitions.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zlib import crc32

from airflow_trident.engine.custom_grouping import Choosing
from airflow_trident.engine.fused.aggregate import key_of_groups
from airflow_trident.errors import UnknownNodeError
from airflow_trident.io.arrow import arrow_schema, python_values, table_to_rows, taken
from airflow_trident.operations.equality import canonical_real
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.user_code import Border, prepared
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.graph import Grouping
from airflow_trident.plan.nodes import PartitionNode, UnionNode
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import WHOLE_TYPES, Field, is_nested, select

if TYPE_CHECKING:
    import pyarrow as pa


def spread(how: PartitionNode, partitions: list[pa.Table], count: int, slot: Slot) -> list[pa.Table]:
    """The tuples of all partitions, moved to `count` partitions, or to one if the grouping gathers.

    :raises UserCodeError: a custom grouping raised, or named a partition that does not exist.
    """
    import pyarrow as pa

    if how.grouping not in RULES:
        raise UnknownNodeError(how.name, how.grouping, "the local engine's exchange")
    rule = RULES[how.grouping]
    if rule is None:
        return partitions
    return rule(how, pa.concat_tables(partitions).combine_chunks(), count, slot)


def united(union: UnionNode, inputs: list[list[pa.Table]]) -> list[pa.Table]:
    """Partition i of every input, one after the other."""
    import pyarrow as pa

    schema = arrow_schema(union.schema)
    parts: list[list[pa.Table]] = [[] for _ in range(max(map(len, inputs)))]
    for number, (takes, partitions) in enumerate(zip(union.takes, inputs, strict=True)):
        for part, table in zip(parts, partitions, strict=False):
            columns = [
                table.column(name).cast(field.type)
                if name is not None
                else pa.repeat(pa.scalar(number if field.name == union.tag else None, field.type), table.num_rows)
                for name, field in zip(takes, schema, strict=True)
            ]
            part.append(pa.Table.from_arrays(columns, schema=schema))
    return [pa.concat_tables(part) for part in parts]


# ---- groupings -------------------------------------------------------------------------------------------------


def _shuffled(whole: pa.Table, count: int) -> list[pa.Table]:
    import numpy as np

    return [taken(whole, np.arange(place, whole.num_rows, count)) for place in range(count)]


def _by_fields(how: PartitionNode, whole: pa.Table, count: int) -> list[pa.Table]:
    import numpy as np

    if count == 1 or not whole.num_rows:
        return [whole, *[whole.slice(0, 0)] * (count - 1)]
    targets = _hashes(whole, select(how.schema, how.keys, how.name)) % count
    return [taken(whole, np.flatnonzero(targets == place)) for place in range(count)]


def _chosen(how: PartitionNode, whole: pa.Table, count: int, slot: Slot) -> list[pa.Table]:
    """By a custom grouping."""
    import pyarrow as pa

    assert how.custom is not None
    choosing = Choosing(how.name, how.fields, how.custom, count, slot.txid)
    context = OperationContext(partition_index=0, num_partitions=1, txid=slot.txid, attempt=slot.attempt)
    border = Border(how.name, function_name(how.custom), how.fields, slot.txid)
    places: list[list[int]] = [[] for _ in range(count)]
    with prepared(choosing, context, border) as prepared_choosing:
        for place, row in enumerate(table_to_rows(whole)):
            for target in prepared_choosing.execute(*row):
                places[target].append(place)
    return [taken(whole, pa.array(some, pa.int64())) for some in places]


_Rule = Callable[[PartitionNode, "pa.Table", int, Slot], "list[pa.Table]"]
RULES: dict[Grouping, _Rule | None] = {
    Grouping.COLOCATED: None,
    Grouping.GLOBAL: lambda _, whole, *__: [whole],
    Grouping.BATCH_GLOBAL: lambda _, whole, *__: [whole],
    Grouping.BROADCAST: lambda _, whole, count, __: [whole] * count,
    Grouping.SHUFFLE: lambda _, whole, count, __: _shuffled(whole, count),
    Grouping.FIELDS: lambda how, whole, count, _: _by_fields(how, whole, count),
    Grouping.CUSTOM: _chosen,
}
"""None: every tuple stays where it is."""


# ---- by fields -------------------------------------------------------------------------------------------------


def _hashes(whole: pa.Table, keys: Sequence[Field]) -> Any:
    """A number for each tuple, the same for equal keys and in every process (Python salts its own hashes). Computed
    once per different key.

    :return: a numpy array of whole numbers.
    """
    import numpy as np

    codes, texts = _coded(whole.column(keys[0].name), keys[0])
    for key in keys[1:]:
        more, others = _coded(whole.column(key.name), key)
        _, firsts, both = np.unique(codes * len(others) + more, return_index=True, return_inverse=True)
        texts = [f"{texts[codes[first]]},{others[more[first]]}" for first in firsts]
        codes = both
    return np.array([crc32(f"({text})".encode()) for text in texts], dtype=np.int64)[codes]


def _coded(column: pa.ChunkedArray, key: Field) -> tuple[Any, list[str]]:
    """For each value the position of its text in a list of texts. Chunks are not joined: they may have more text than
    one array holds."""
    import numpy as np

    if is_nested(key.type):
        codes, values = np.arange(len(column)), column
    else:
        encoded = column.dictionary_encode(null_encoding="encode").chunks
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded]).astype(np.int64)
        values = encoded[-1].dictionary
    if key.type in _PLAIN:
        return codes, list(map(str, python_values(values)))
    alike = key_of_groups((key,))
    return codes, [_text(alike(value)) for value in python_values(values)]


_PLAIN = frozenset({"string", "boolean", *WHOLE_TYPES})
"""Types for which `_text` equals `str`."""


def _text(value: Any) -> str:
    """Equal values as equal texts."""
    if isinstance(value, list | tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, float):
        return repr(canonical_real(value))
    if isinstance(value, Decimal):
        return str(value.normalize())
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return str(value)
