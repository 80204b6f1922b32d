"""Lineage of an ended task, for Airflow's OpenLineage provider.

The provider calls it, and only then is this module imported: never while a DAG is parsed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    RunFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from airflow_trident.errors import guarded
from airflow_trident.protocol.records import NO_ATTEMPT, Status, TxRecord
from airflow_trident.tasks.asset_events import POSITION_CHARACTERS
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    from airflow_trident.contracts.spout import Spout
    from airflow_trident.io.datasets import Dataset
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.topology.topology import Topology

_log = logging.getLogger(__name__)

TRANSACTIONS_TOLD = 100
"""How many of the lowest transactions of a task are listed one by one; the sums are of all."""
RUN_FACET = "trident_transactions"
BATCH_FACET = "trident_batch"


@define
class TridentTransactionsRunFacet(RunFacet):
    """`transactions`: txid, status, partition, attempt, rows read, rows staged by state, and bytes of the lowest
    `TRANSACTIONS_TOLD`; `count`, `rows_read`: of all."""

    topology: str
    incarnation: str
    count: int
    rows_read: int
    transactions: list[dict[str, Any]]


@define
class TridentBatchInputDatasetFacet(InputDatasetFacet):
    """The batches that streams read from the dataset. `streams`: name -> first and last txid with data from it, and the
    metadata of their batches, if short."""

    streams: dict[str, dict[str, Any]]


def lineage_of(
    topology: Topology, ledger: Ledger, records: Sequence[TxRecord], *, reads: bool, writes: bool
) -> OperatorLineage[Any, Any]:
    """The lineage of a task that worked on these transactions.

    :param records: of the transactions, lowest first.
    :param reads: report the sources of staged batches.
    :param writes: the task commits: report only sources and states of COMMITTED transactions.
    """
    done = [record for record in records if record.staged and (record.status is Status.COMMITTED or not writes)]
    transactions = TridentTransactionsRunFacet(
        topology=topology.name,
        incarnation=ledger.paths().incarnation,
        count=len(records),
        rows_read=_rows_read(records),
        transactions=[_told(record) for record in records[:TRANSACTIONS_TOLD]],
    )
    return OperatorLineage(
        inputs=_inputs(topology, done) if reads else [],
        outputs=_outputs(topology, done) if writes and done else [],
        run_facets={RUN_FACET: transactions},
    )


def _told(record: TxRecord) -> dict[str, Any]:
    summary: dict[str, Any] = {"txid": record.txid, "status": str(record.status)}
    if record.partition is not None:
        summary["partition"] = record.partition.key
    if record.attempt != NO_ATTEMPT:
        summary["attempt"] = record.attempt
    if record.staged is not None:
        summary |= {
            "rows_read": record.staged.rows_read,
            "rows": dict(record.staged.rows),
            "bytes": record.staged.bytes,
        }
    return summary


def _rows_read(records: Sequence[TxRecord]) -> int:
    return sum(max(0, record.staged.rows_read) for record in records if record.staged)


def _inputs(topology: Topology, records: Sequence[TxRecord]) -> list[InputDataset]:
    """One input for each dataset, even if several streams read it."""
    streams: dict[Dataset, dict[str, dict[str, Any]]] = {}
    schemas: dict[Dataset, Schema] = {}
    for stream, spout in topology.spouts.items():
        in_stream = [record for record in records if stream in record.metadata]
        for dataset in _datasets(stream, spout, in_stream):
            streams.setdefault(dataset, {})[stream] = _batches(stream, in_stream)
            schemas.setdefault(dataset, spout.schema)
    rows = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=_rows_read(records))
    alone = len(topology.spouts) == len(streams) == 1  # else the rows of each dataset are not known
    return [
        InputDataset(
            namespace=dataset.namespace,
            name=dataset.name,
            facets={"schema": _schema_facet(schemas[dataset])},
            inputFacets={
                BATCH_FACET: TridentBatchInputDatasetFacet(streams=about),
                **({"inputStatistics": rows} if alone else {}),
            },
        )
        for dataset, about in streams.items()
    ]


def _datasets(stream: str, spout: Spout, records: Sequence[TxRecord]) -> tuple[Dataset, ...]:
    if not records:
        return ()
    try:
        with guarded(f"the spout of stream {stream!r}"):
            return spout.lineage_datasets(records[-1].metadata[stream])
    except Exception as error:  # noqa: BLE001 - a user's spout may raise anything; lineage fails no task
        return _untold(f"stream {stream}", error)


def _batches(stream: str, records: Sequence[TxRecord]) -> dict[str, Any]:
    first, last = records[0], records[-1]
    about: dict[str, Any] = {"first_txid": first.txid, "last_txid": last.txid}
    metadata: dict[str, Json] = {"first": first.metadata[stream], "last": last.metadata[stream]}
    return about | metadata if len(json.dumps(metadata)) <= POSITION_CHARACTERS else about


def _outputs(topology: Topology, records: Sequence[TxRecord]) -> list[OutputDataset]:
    datasets = []
    for name, spec in topology.states.items():
        try:
            with guarded(f"state {name!r}"):
                dataset = spec.factory.lineage_dataset(spec)
        except Exception as error:  # noqa: BLE001 - as of spouts
            _untold(f"state {name}", error)
            continue
        if dataset is not None:
            rows = sum(record.staged.rows.get(name, 0) for record in records if record.staged)
            statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
            datasets.append(
                OutputDataset(
                    namespace=dataset.namespace,
                    name=dataset.name,
                    facets={"schema": _schema_facet((*spec.keys, *spec.values))},
                    outputFacets={"outputStatistics": statistics},
                )
            )
    return datasets


def _untold(subject: str, error: Exception) -> tuple[Dataset, ...]:
    _log.info("lineage does not tell of %s (%s: %s)", subject, type(error).__name__, error)
    return ()


def _schema_facet(schema: Schema) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name=column.name, type=column.type) for column in schema]
    return schema_dataset.SchemaDatasetFacet(fields=fields)
