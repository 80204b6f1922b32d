"""The query task: runs a query of a topology and returns the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.base import airflow_outcome, require_durable
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class TridentQueryOperator(BaseOperator):
    """Runs a query stream of a topology over committed data, and returns its tuples as a list of objects (XCom).

    It needs no ledger. A text from a template is converted to the type of its argument.

    :param topology: the Topology; not templated.
    :param query: name of the query, as in ``new_drpc_stream(name, ...)``.
    :param query_args: a value for each argument of the query (templated).
    """

    template_fields: Sequence[str] = ("query_args",)
    shallow_copy_attrs: Sequence[str] = ("topology",)
    ui_color = "#dbf0e3"

    def __init__(self, *, topology: Topology, query: str, query_args: Sequence[Any] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(topology, Topology):
            raise ConfigurationError(f"{topology!r} is not a topology", "Give the Topology object.")
        topology.queries.compile(query)
        require_durable(topology)
        self.topology = topology
        self.query = query
        self.query_args = query_args

    def execute(self, context: Context) -> list[dict[str, Json]]:
        from airflow_trident.runtime.query import query_texts

        with airflow_outcome():
            result = query_texts(self.topology, self.query, list(self.query_args))
        self.log.info("%s tuples", len(result.rows))
        return result.as_json()
