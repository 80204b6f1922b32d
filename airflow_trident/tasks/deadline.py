"""An Airflow deadline that counts from the beginning of the oldest uncommitted transaction."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError, LedgerUnavailableError, within

if TYPE_CHECKING:
    from airflow.sdk.definitions.deadline import BaseDeadlineReference
    from sqlalchemy.orm import Session

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.ledger.open import SessionPool
else:
    try:
        from airflow.sdk.definitions.deadline import BaseDeadlineReference
    except ImportError:  # before 3.2
        BaseDeadlineReference = object

_log = logging.getLogger(__name__)
READ_S = 5.0
"""The longest time that the scheduler waits in all: for a connection, for ZooKeeper, and for the ledger."""
PAUSE_S = 60.0
"""The scheduler does not ask a ledger that did not answer again for this time: each new run would wait `READ_S`."""
_SILENT_SINCE: dict[str | None, float] = {}
"""The last time that no answer came, by the id of the connection."""


@dataclass(eq=False)
class OldestUncommittedDeadline(BaseDeadlineReference):  # type: ignore[misc,unused-ignore]
    """``DeadlineAlert(OldestUncommittedDeadline("orders"), timedelta(hours=1), callback)`` alerts about a run that has
    not ended an hour after the oldest uncommitted transaction of the topology began.

    Airflow's own references count from a run's dates and do not see a batch that has waited since yesterday. Airflow
    evaluates the reference when it creates a run. If everything is committed, or the ledger does not answer, it is the
    current time; such a ledger is asked again a minute later.

    :param topology: its name.
    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    """

    topology: str = ""
    zookeeper_conn_id: str | None = None

    def serialize_reference(self) -> dict[str, Any]:
        if not self.topology:
            raise ConfigurationError("a deadline of no topology", 'Name it: OldestUncommittedDeadline("orders").')
        return {
            "reference_type": self.reference_name,
            "topology": self.topology,
            "zookeeper_conn_id": self.zookeeper_conn_id,
        }

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> OldestUncommittedDeadline:
        return cls(reference_data["topology"], reference_data.get("zookeeper_conn_id"))

    def _evaluate_with(self, *, session: Session, **_kwargs: Any) -> datetime:
        """Airflow calls this in the scheduler while it creates a run."""
        since_ms = None
        if time.monotonic() - _SILENT_SINCE.get(self.zookeeper_conn_id, -PAUSE_S) >= PAUSE_S:
            try:
                since_ms = within(READ_S, self._begun_ms)
            except Exception as error:  # noqa: BLE001 - no error may prevent the run
                _log.warning("the oldest uncommitted transaction of topology %s is not known: %s", self.topology, error)
                if isinstance(error, TimeoutError | LedgerUnavailableError):
                    _SILENT_SINCE[self.zookeeper_conn_id] = time.monotonic()
        return datetime.now(UTC) if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC)

    def _begun_ms(self) -> int | None:
        from airflow_trident.hooks.zookeeper import ZooKeeperHook

        with sessions().used(ZooKeeperHook(self.zookeeper_conn_id).get_ledgers(deadline_s=READ_S)) as ledgers:
            return begun_ms_of_oldest(ledgers.ledger(self.topology))


@cache
def sessions() -> SessionPool:
    """This process has one pool. It is made late, because each process of Airflow loads this module."""
    from airflow_trident.ledger.open import SessionPool

    return SessionPool()


def begun_ms_of_oldest(ledger: Ledger) -> int | None:
    """When the lowest uncommitted transaction began; None: all are committed."""
    view = ledger.view(0)
    lowest = view.lowest_uncommitted(view.next_txid)
    record = None if lowest is None else ledger.view(lowest).tx
    return None if record is None else record.times_ms.get("begun")
