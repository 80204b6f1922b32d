"""How a driver is marked in the cluster that runs it."""

from __future__ import annotations

import pytest

from airflow_trident.engine.spark.driver_tags import NO_TAGS, DriverTags

YARN = "spark.yarn.tags"


def test_an_attempt_says_its_topology_transaction_and_number_everywhere() -> None:
    tags = DriverTags(topology="Fruit", txid="7-9", attempt="0")
    assert tags.about == " 7-9, attempt 0"
    assert tags.conf({}) == {
        "spark.trident.topology": "Fruit",
        "spark.trident.txid": "7-9",
        "spark.trident.attempt": "0",
        "spark.kubernetes.driver.label.trident-topology": "Fruit",
        "spark.kubernetes.driver.label.trident-txid": "7-9",
        "spark.kubernetes.driver.label.trident-attempt": "0",
        YARN: "trident-topology-fruit,trident-txid-7-9,trident-attempt-0",
    }


def test_a_drain_is_found_by_its_order_and_a_persons_own_tags_stay() -> None:
    tags = DriverTags(topology="fruit", order="0aF1")
    assert tags.about == ""
    assert tags.conf({YARN: "mine"})[YARN] == f"mine,trident-topology-fruit,{tags.yarn_tag}"
    assert tags.yarn_tag == "trident-order-0af1"
    assert NO_TAGS.conf({YARN: "mine"}) == {}


@pytest.mark.parametrize("name", ["b\u00e4ume", "a,b", "t" * 200])
def test_a_name_that_yarn_or_kubernetes_would_refuse_is_a_setting_only(name: str) -> None:
    conf = DriverTags(topology=name, order="1").conf({})
    assert conf["spark.trident.topology"] == name
    assert conf[YARN] == "trident-order-1"
    assert "spark.kubernetes.driver.label.trident-topology" not in conf
