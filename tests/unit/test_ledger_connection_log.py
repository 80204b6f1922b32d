"""An outage of ZooKeeper is a few lines of a log, with the address and how long it lasts."""

from __future__ import annotations

import logging

import pytest

from airflow_trident.errors import LedgerUnavailableError
from airflow_trident.ledger.zookeeper.client import SAY_AGAIN_S, ConnectionLog, ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings

REFUSED = "Connection dropped: socket connection error: Connection refused"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_outage_is_a_line_at_its_beginning_one_each_minute_and_one_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    reasons = ConnectionLog("ZooKeeper at zk1:2181", clock)
    for second in range(150):
        clock.now_s = 1000.0 + second
        reasons.logger.warning("Connection dropped: %s", "socket connection error: Connection refused")
        reasons.logger.warning("Transition to CONNECTING")
    clock.now_s += 1.5
    reasons.connected()
    assert [record.getMessage() for record in caplog.records] == [
        f"ZooKeeper at zk1:2181: {REFUSED}. Trying again.",
        f"ZooKeeper at zk1:2181: no connection for 60 s, 61 tries: {REFUSED}",
        f"ZooKeeper at zk1:2181: no connection for 120 s, 121 tries: {REFUSED}",
        "ZooKeeper at zk1:2181: connected again after 150.5 s",
    ]
    assert REFUSED in reasons.text()


def test_a_connection_without_an_outage_is_no_news_and_the_next_outage_is_a_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    reasons = ConnectionLog("here", clock)
    reasons.connected()
    assert not caplog.records
    for _ in range(2):
        reasons.logger.warning("gone")
        clock.now_s += SAY_AGAIN_S / 2
        reasons.connected()
    assert [record.getMessage() for record in caplog.records] == [
        "here: gone. Trying again.",
        "here: connected again after 30.0 s",
    ] * 2


def test_a_server_that_is_not_there_is_one_line_of_the_real_client_with_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    znodes = ZooKeeperZNodes(ZooKeeperSettings(hosts="127.0.0.1:1", connect_deadline_s=1.5, op_deadline_s=1.5))
    with pytest.raises(LedgerUnavailableError, match="Connection refused"):
        znodes.read(["/"])
    znodes.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("kazoo")]
    assert line.startswith("ZooKeeper at 127.0.0.1:1: Connection dropped")
