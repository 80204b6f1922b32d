"""Which rows of a Delta table's file count, where deletion vectors say that some do not. As text: splits are JSON."""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from collections.abc import Container
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_trident.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

_FEATURE = "deletionVectors"


def may_have_vectors(table: Any) -> bool:
    """Only tables with the feature can, so that others cost nothing."""
    return _FEATURE in (table.protocol().reader_features or ())


def kept_rows(table: Any, paths: Container[str]) -> dict[str, str]:
    """Path -> which rows of that file count. Without the files of which all do.

    It reads every deletion vector of this version of the table: deltalake has no way to read some.

    :param table: the `deltalake.DeltaTable`.
    :param paths: all files of this version, relative to the table.
    :raises ConfigurationError: a vector is of a file that is none of these.
    """
    import pyarrow as pa

    above, found = table.table_uri.rstrip("/") + "/", dict[str, str]()
    for batch in pa.table(table.deletion_vectors()).to_batches():
        for uri, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            path = unquote(uri.as_py().removeprefix(above))
            if path not in paths:
                raise ConfigurationError(
                    f"the Delta table {table.table_uri!r} has a deletion vector of {path!r}, which is no file of it",
                    "Purge the vectors (REORG TABLE ... APPLY (PURGE)).",
                )
            found[path] = _as_text(kept.values)
    return found


def of_batch(text: str, batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """The rows of a batch that count.

    :param text: which rows of the file count; a row behind its end does.
    :param at: the place of the batch's first row in the file.
    """
    import pyarrow as pa

    size, _, bits = text.partition(":")
    kept = pa.BooleanArray.from_buffers(
        pa.bool_(), int(size), [None, pa.py_buffer(zlib.decompress(b85decode(bits)))]
    ).slice(at, batch.num_rows)
    rest = pa.array([True] * (batch.num_rows - len(kept)), pa.bool_())
    return batch.filter(pa.concat_arrays([kept, rest]))


def _as_text(kept: pa.BooleanArray) -> str:
    import pyarrow as pa

    whole = pa.concat_arrays([kept])  # begins at its buffer's first bit
    return f"{len(whole)}:{b85encode(zlib.compress(whole.buffers()[1].to_pybytes())).decode()}"
