"""The worker task: a named worker, which runs as long as the topologies that are deployed on it.

Makes a named worker for a command or task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError, RetryableError
from airflow_trident.ledger.open import open_ledger
from airflow_trident.names import EngineKind, require_name
from airflow_trident.operators.base import airflow_outcome, claim_of, require_takes_new, require_topology
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.records import OnFailure, Owner
from airflow_trident.runtime.drains.limits import DrainLimits, on_failure_of, pending_of
from airflow_trident.storm.workers.deployments import Deployments
from airflow_trident.storm.workers.worker import Means, NamedWorker, Patience
from airflow_trident.tasks.engines import make_engine
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.engine import Engine
    from airflow_trident.hooks.zookeeper import ZooKeeperHook
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.phases import Attempts, Progress


class TridentWorkerOperator(EngineOperator):
    """A named worker (``airflow trident worker``) as a task: it registers, and obeys the commands for the topologies
    that are deployed on it, until all of them are shut down.

    ``airflow trident deploy`` sets which topology is deployed on which workers. With ``schedule="@continuous"`` and
    retries the worker is always there. Succeeds when its topologies are shut down or taken away.

    It brings no events of the topologies' assets, because Airflow takes a task's events only when the task succeeds.
    What it commits is on the ledger's list of events, which a drain task beside it brings.

    :param topologies: the Topologies that it may run. It is an error if one of them is not deployed on this name.
    :param name: of the worker; only one process at a time has it (templated).
    :param wait_s: how many seconds it waits for a deployment that names it, and for its name.
    :param poll_s: seconds between two looks at a source that has nothing new.
    :param stop_s: how many seconds begun work may still take when the task is asked to end.
    :param max_pending: transactions that are uncommitted at once, of each topology; None: twice a drain's group.
    :param tries: attempts of one transaction.
    :param on_failure: ``block``: the topology waits for a person, ``skip``: its other transactions go on.
    :param retention: committed transactions to keep; None: ``[trident] retention``.
    """

    template_fields: Sequence[str] = ("name", *EngineOperator.template_fields)
    shallow_copy_attrs: Sequence[str] = ("topology", "topologies")
    ui_color = "#e3dcf2"
    one_batch = False

    def __init__(
        self,
        *,
        topologies: Sequence[Topology],
        name: str,
        wait_s: float = 60.0,
        poll_s: float = 5.0,
        stop_s: float = 3.0,
        max_pending: int | None = None,
        tries: int = 3,
        on_failure: OnFailure | str = OnFailure.BLOCK,
        retention: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.topologies = _distinct(topologies)
        super().__init__(topology=self.topologies[0], **kwargs)
        if "{{" not in name:
            require_name("worker", name)
        self.name = name
        self.wait_s, self.poll_s, self.stop_s = _seconds(wait_s=wait_s, poll_s=poll_s, stop_s=stop_s)
        self.max_pending = max_pending
        for topology in self.topologies:
            pending_of(topology.states, max_pending)
            on_failure_of(topology.states, on_failure)
        self.tries = settings.parse_count("tries", tries)
        self.on_failure = OnFailure(on_failure)
        self.retention = settings.parse_limit("retention", retention)
        self._worker: NamedWorker | None = None
        self._killed = False

    def execute(self, context: Context) -> None:
        with airflow_outcome():
            made = self._worker = self._make(context)
            finished = made.run()
            if self._killed or not finished:  # a success would end the task for good: Airflow starts it again only so
                raise RetryableError(
                    f"worker {self.name!r} was asked to end"
                    + ("" if finished else ", and had not finished what it began within stop_s"),
                    "Other workers go on, or its next try.",
                )

    def on_kill(self) -> None:
        """Begin nothing more; :meth:`execute` ends within `stop_s`. Correctness never needs this."""
        self._killed = True
        if self._worker is not None:
            self._worker.stop()

    def _make(self, context: Context) -> NamedWorker:
        from airflow_trident.hooks.zookeeper import ZooKeeperHook
        from airflow_trident.storm.workers.worker import Patience

        by_name = {topology.name: topology for topology in self.topologies}
        return make_worker(
            self.name,
            ZooKeeperHook(self.zookeeper_conn_id or None),
            only=tuple(by_name),
            code_of=by_name.__getitem__,
            engine_of=partial(self._engine_of, self.conf_of_run(context)),
            children_here=lambda _: bolts_run_here(self.engine, self.spark_conn_id, self.spark_conf),
            staging_dir=self.staging_dir,
            attempts=self.attempts(context),
            claim=claim_of(context, "worker"),
            limits=DrainLimits(max_pending=settings.parse_limit("max_pending", self.max_pending), tries=self.tries),
            retention_of=lambda _topology: settings.retention(self.retention),
            patience=Patience(poll_s=self.poll_s, wait_s=self.wait_s, stop_s=self.stop_s),
            progress=lambda line: self.log.info("%s", line),
        )

    def _engine_of(self, conf: Mapping[str, str], topology: Topology) -> Engine:
        return make_engine(
            self.engine,
            conn_id=self.spark_conn_id,
            conf=conf,
            app_name=f"trident worker {self.name}",
            topology=topology,
            one_shot=False,
        )


def _distinct(topologies: Sequence[Topology]) -> tuple[Topology, ...]:
    """:raises ConfigurationError: the list is empty or no list, or two topologies have the same name."""
    if isinstance(topologies, Topology) or not topologies:
        raise ConfigurationError("a worker has no list of topologies", "Give some, as in topologies=[topology].")
    every = tuple(map(require_topology, topologies))
    for topology in every:
        require_takes_new(topology, "a worker")
    names = [topology.name for topology in every]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"a worker has two topologies {twice[0]!r}", "Give each once.")
    return every


def _seconds(**seconds: float) -> tuple[float, ...]:
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigurationError(f"{name} = {value!r} is no number of seconds", "Give 0 or more.")
    return tuple(map(float, seconds.values()))


def make_worker(
    name: str,
    hook: ZooKeeperHook,
    *,
    only: Collection[str],
    code_of: Callable[[str], Topology],
    engine_of: Callable[[Topology], Engine],
    children_here: Callable[[Topology], bool],
    staging_dir: str | None,
    attempts: Attempts,
    claim: Claim,
    limits: DrainLimits,
    retention_of: Callable[[str], int],
    patience: Patience,
    progress: Progress,
) -> NamedWorker:
    """Opens no connection yet. Asks Airflow for the ZooKeeper connection here, once, so that threads need not ask.

    :raises PlanError: the name is invalid.
    """
    zookeeper, root = hook.zookeeper_settings(), settings.text(settings.ROOT)
    chunk_bytes, sources_root = settings.chunk_bytes(staging_dir), settings.sources_root(staging_dir)

    def ledger_of(topology: str, incarnation: str) -> Ledger:
        return open_ledger(
            zookeeper,
            topology,
            root=root,
            incarnation=incarnation,
            chunk_bytes=chunk_bytes,
            sources_root=sources_root,
        )

    means = Means(
        code_of=code_of,
        open_ledger=ledger_of,
        engine_of=engine_of,
        staging_root=settings.staging_root(staging_dir),
        attempts=attempts,
        claim=claim,
        limits=limits,
        retention_of=retention_of,
        children_here=children_here,
    )
    return NamedWorker(
        name=name,
        deployments=Deployments(hook.get_conn(), root),
        means=means,
        owner=Owner.of(attempts.owner),
        progress=progress,
        only=tuple(only),
        patience=patience,
    )


def bolts_run_here(engine: EngineKind | str, conn_id: str | None, conf: Mapping[str, str]) -> bool:
    """Does the processing phase run on this machine, with the bolts in other programs?"""
    if EngineKind(engine) is EngineKind.LOCAL:
        return True
    return conn_id is None and conf.get("spark.master", "local").startswith("local")
