"""Adds the transaction id to rows of a stream, which makes them changes of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.operations.api import OperationContext
from airflow_trident.operations.newest import null_key
from airflow_trident.operations.vectors import VectorFunction

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(kw_only=True)
class TxidOfKeys(VectorFunction):
    """The id of the transaction, for rows whose keys have no nulls.

    :param keys: the names of the columns that it receives.
    :param state: the changed state, for the error.
    """

    keys: tuple[str, ...]
    state: str
    _txid: int = field(default=0, init=False)

    def prepare(self, context: OperationContext) -> None:
        self._txid = context.txid

    def execute(self, *columns: pa.Array) -> Any:
        """:raises UserCodeError: a key is null."""
        import pyarrow as pa

        for column in columns:
            if column.null_count:
                row = column.is_null().index(True).as_py()
                key = {one: found[row].as_py() for one, found in zip(self.keys, columns, strict=True)}
                raise null_key(self.state, self._txid, key)
        return pa.repeat(pa.scalar(self._txid, pa.int64()), len(columns[0]))
