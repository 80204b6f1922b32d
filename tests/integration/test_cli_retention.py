"""How much the commands keep of a topology whose DAG keeps more than is configured."""

from __future__ import annotations

import pytest

from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.phases import coordinate
from tests.fixtures.airflow import airflow_home
from tests.fixtures.cli import DAG_FILE, Site, site

__all__ = ["airflow_home", "site"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]


def test_a_drain_and_a_backfill_keep_what_the_dag_of_the_topology_keeps(site: Site) -> None:
    site.home.options["AIRFLOW__TRIDENT__RETENTION"] = "1"
    site.home.write_dag("words_dag", DAG_FILE.replace('engine="local"', 'engine="local", retention=1000'))
    site.mend()
    (drained,) = site.tridents("drain words --engine local --group 1 --max-transactions 2")
    assert drained.code == 0, drained.err
    assert site.statuses() == [Status.COMMITTED] * 2
    with site.ledger() as ledger:
        coordinate(ledger, site.topology, [Claim(key="left")], max_pending=5)
    (backfilled,) = site.tridents("backfill words --txid 3 --engine local")
    assert backfilled.code == 0, backfilled.err
    assert site.statuses() == [Status.COMMITTED] * 3
