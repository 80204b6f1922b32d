"""The upkeep task: compacts, folds or publishes a state."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_trident import settings
from airflow_trident.contracts.upkeep import Upkeep, View
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_stores import require_place_unless_template
from airflow_trident.operators.base import airflow_outcome, require_topology
from airflow_trident.operators.engine_operator import CANCEL_LIMIT_S
from airflow_trident.runtime.upkeep import keep_up, require_compacting, require_upkeep
from airflow_trident.tasks.engines import EngineKind, make_engine
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.base import Engine


class TridentUpkeepOperator(BaseOperator):
    """Compacts, folds or publishes a state. Returns whether there was anything to do. It needs no ledger, changes no
    answer of the state, and may run beside the topology's other tasks.

    :param topology: the Topology; not templated.
    :param state: name of the state.
    :param action: ``compact`` (a table of upserts, or of rewritten rows), ``fold`` (a DeltaState) or ``publish`` (a
        DeltaState, or a table of upserts).
    :param view: for ``publish`` of a table of upserts: the view of its latest rows that Spark makes or replaces,
        ``schema.name`` or ``catalog.schema.name``.
    :param table: how Spark's catalogue names the table, for the view; None: by its place.
    :param engine: ``spark`` to compact by Spark, for tables whose keys this process has no memory for; ``local``: in
        this process. None: as `spark_conn_id` says. A view is always made by Spark.
    :param spark_conn_id: connection of type ``spark_connect``; None: a session in the task's own process (templated).
    :param spark_conf: settings of the session (templated).
    :param staging_dir: folder in which Spark leaves the files of a compaction, seen by this task and all executors;
        None: ``[trident] staging_dir`` (templated).
    :raises ConfigurationError: there is no such state, or the state has no such upkeep.
    """

    template_fields: Sequence[str] = ("spark_conn_id", "spark_conf", "staging_dir")
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - as Airflow's operators declare it
    shallow_copy_attrs: Sequence[str] = ("topology",)
    ui_color = "#dbf0e3"

    def __init__(
        self,
        *,
        topology: Topology,
        state: str,
        action: str,
        view: str | None = None,
        table: str | None = None,
        engine: EngineKind | str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        staging_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = require_topology(topology)
        if state not in topology.states:
            known = ", ".join(topology.states) or "none"
            raise ConfigurationError(f"topology {topology.name} has no state {state!r}", f"It has {known}.")
        if action not in set(Upkeep):
            raise ConfigurationError(f"action={action!r} is no upkeep", f"Give one of {', '.join(Upkeep)}.")
        self.view = None if view is None else View(name=view, table=table)
        require_upkeep(topology.states[state], Upkeep(action), self.view)
        if self.view is None and table is not None:
            raise ConfigurationError(
                f"table={table!r} is for a view, and none is named", "Leave it out, or give view=."
            )
        if engine not in (None, *EngineKind):
            raise ConfigurationError(f"engine = {engine!r} is unknown", "Use 'spark' or 'local'.")
        wanted = spark_conn_id is not None or bool(spark_conf) or staging_dir is not None or self.view is not None
        if wanted and engine == EngineKind.LOCAL:
            raise ConfigurationError(
                "the local engine has no view, Spark connection, settings or staging folder", "Leave out engine."
            )
        self.by_spark = wanted or engine == EngineKind.SPARK
        if self.by_spark and self.view is None:
            require_compacting(topology.states[state], Upkeep(action))
        require_place_unless_template(f"staging_dir of {self.task_id}", staging_dir)
        self.staging_dir = staging_dir
        self.state = state
        self.action = action
        self.spark_conn_id = spark_conn_id
        self.spark_conf = dict(spark_conf or {})
        self._running: Engine | None = None

    def execute(self, context: Context) -> bool:
        spec, act = self.topology.states[self.state], Upkeep(self.action)
        with airflow_outcome():
            if not self.by_spark:
                return keep_up(spec, act, self.log.info)
            root = settings.staging_root(self.staging_dir) if self.view is None else None
            with self._engine() as engine:
                return keep_up(spec, act, self.log.info, view=self.view, engine=engine, staging_root=root)

    def _engine(self) -> Engine:
        self._running = make_engine(
            EngineKind.SPARK,
            conn_id=self.spark_conn_id,
            conf=self.spark_conf,
            app_name=f"trident {self.topology.name} {self.action}",
        )
        return self._running

    def on_kill(self) -> None:
        """Cancel the running job, for a limited time. This saves work; correctness never needs it."""
        if self._running is not None:
            canceller = threading.Thread(target=self._running.cancel, name="trident-cancel", daemon=True)
            canceller.start()
            canceller.join(CANCEL_LIMIT_S)
