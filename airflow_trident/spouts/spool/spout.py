"""A transactional spout over a source that cannot be replayed. Each batch is a durable file before it gets its txid.
After the commit the source is told that it may forget the batch.

The steps; a kill may come after each of them:

1. `poll`: the source gives items. If it can, it holds them until they are acknowledged.
2. The batch is written, synced and published by put-if-absent as the next file of the folder.
3. The ledger records the transaction with the file's number, rows and sha256. If the next file exists already, because
   a process died between 2 and 3 or another was faster, it is taken and nothing is polled.
4. After the commit a later coordinator acknowledges the batch, then leaves a mark beside the file. After a kill in
   between it is acknowledged again.

After a kill between 1 and 2 the source gives the items again; a source without `ack` has lost them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, SourceUnavailableError, TridentError
from airflow_trident.io.local_paths import AnyPath
from airflow_trident.protocol.txids import Txids
from airflow_trident.spouts.metadata import as_json, read_back
from airflow_trident.spouts.spool.folder import spool_folder
from airflow_trident.spouts.spool.sources import SpoolSource
from airflow_trident.spouts.spool.spool import Spool, SpooledBatch
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class SpooledSpout(Spout):
    """Batches of a source, written to a folder first.

    :param source: a :class:`SpoolSource`.
    :param folder: for this stream alone, the same for coordinators, workers and executors; durable storage. Or
        ``s3://[connection@]bucket/folder``, ``abfs://[connection@]container/folder`` or
        ``gs://[connection@]bucket/folder``, as a text or as Airflow's ObjectStoragePath, or
        ``hdfs://[connection@]/folder``.
    :param max_rows: how many rows the source is asked for in one batch.
    :param keep: the last committed batch and this number before it are kept, to be read again and to know their ids; a
        batch that is not acknowledged is always kept.
    """

    def __init__(self, source: SpoolSource, folder: AnyPath, *, max_rows: int = 10_000, keep: int = 20) -> None:
        if not isinstance(source, SpoolSource):
            raise ConfigurationError(f"SpooledSpout of {source!r}", "Give it a CallableSource or another SpoolSource.")
        if max_rows < 1 or keep < 1:
            raise ConfigurationError(f"SpooledSpout with max_rows={max_rows}, keep={keep}", "Both must be at least 1.")
        self._source, self._max_rows = source, max_rows
        self._spool = Spool(spool_folder(folder), source.schema, keep)

    @property
    def schema(self) -> Schema:
        return self._source.schema

    def placed(self, topology: str, stream: str) -> SpooledSpout:
        made = copy.copy(self)
        made._source = self._source.placed(topology, stream)
        return made

    def coordinator(self) -> SpoolCoordinator:
        return SpoolCoordinator(self._source, self._spool, self._max_rows)

    def emitter(self) -> SpoolEmitter:
        return SpoolEmitter(self._spool)

    def describe(self) -> str:
        return f"SpooledSpout({self._source.describe()}, {self._spool.folder.where})"


@dataclass(frozen=True)
class SpoolCoordinator(Coordinator):
    """Metadata: :class:`airflow_trident.spouts.spool.spool.SpooledBatch`."""

    source: SpoolSource
    spool: Spool
    max_rows: int
    passed: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Batch -> its transaction, which others pass, as the ledger last said."""

    def is_ready(self, previous: Json) -> bool:
        """Polls if nothing is spooled: what it gets is not lost, it is the next batch."""
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """May be called any number of times: its only effect is a file, which the next call finds.

        :raises SourceChangedError: the folder is not the one that the ledger knows.
        """
        wanted = 1 if previous is None else _batch(previous).number + 1
        if not self.spool.has(wanted) and not self._fill():
            return None
        return as_json(self.spool.batch(wanted))

    def _fill(self) -> bool:
        seen: set[str] = set()
        while True:
            polled = self.source.poll(self.max_rows)
            if polled is None or not polled.rows:
                return False
            is_new = self.spool.append(polled)
            self.source.spooled()
            if is_new:
                return True
            if polled.token is None:
                return False
            # All rows were spooled before. If they are committed, the source may forget them; otherwise it keeps them.
            ids = set(polled.ids or ())
            waiting = self.spool.waiting(ids)
            if not waiting:
                self.source.ack(polled.token)
            if not waiting or len(polled.rows) < self.max_rows or not self.passed.keys() >= set(waiting):
                return False
            # Nobody is going to commit them now, and there may be others: a source that hides what it gave gives those.
            if ids <= seen:
                raise self._stands_still(waiting)
            seen |= ids

    def _stands_still(self, waiting: Sequence[int]) -> SourceUnavailableError:
        txids = Txids.of(*(self.passed[number] for number in waiting))
        return SourceUnavailableError(
            f"{self.source.describe()} gives the same items again and again, as many as it is asked for "
            f"({self.max_rows}): those of what was SKIPPED or CLOSED (transactions: {txids}), which are not "
            "acknowledged. What is behind them stays unseen",
            "Let the source hide for some time what it gave, or poll for what is behind that. Or backfill what is "
            "SKIPPED, and delete the items of what is CLOSED.",
        )

    def skipped(self, batches: Mapping[int, Json]) -> None:
        self.passed.clear()
        self.passed.update({_batch(metadata).number: txid for txid, metadata in batches.items()})

    def success(self, txid: int, metadata: Json) -> None:
        number = _batch(metadata).number
        if self.spool.is_acknowledged(number):
            return
        token = self.spool.token(number)
        if token is not None:
            self.source.ack(token)
        self.spool.mark_acknowledged(number)

    def close(self) -> None:
        """Spools what the source still gives at its end: the next coordinator takes it, as after a kill at step 2."""
        with closing(self.source):
            rest = self.source.rest()
            if rest is None or not rest.rows:
                return
            try:
                self.spool.append(rest)
            except TridentError as error:  # not raised: what the coordinator was opened for is done, or has failed
                _log.warning(
                    "%s: %d rows that came at its end are lost: %s", self.source.describe(), len(rest.rows), error
                )


@dataclass(frozen=True)
class SpoolEmitter(Emitter):
    """One split for each record batch of the file."""

    spool: Spool

    def splits(self, metadata: Json) -> list[Split]:
        batch = _batch(metadata)
        return [
            Split(index, {"batch": batch.number, "part": index, "sha256": digest})
            for index, digest in enumerate(self.spool.parts(batch))
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, dict)
        number, part, digest = split.body["batch"], split.body["part"], split.body["sha256"]
        assert isinstance(number, int)
        assert isinstance(part, int)
        found = self.spool.part(number, part, str(digest))
        yield found.select([field.name for field in self.spool.schema])


def _batch(metadata: Json) -> SpooledBatch:
    return read_back(SpooledBatch, metadata, "a SpooledSpout")
