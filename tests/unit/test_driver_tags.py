"""How a driver is marked in the cluster that runs it."""

from __future__ import annotations

import re

import pytest

from airflow_trident.engine.spark.submit import NO_TAGS, POD_NAME, DriverTags, label

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
def test_a_name_that_yarn_would_refuse_is_no_tag_there(name: str) -> None:
    conf = DriverTags(topology=name, order="1").conf({})
    assert conf["spark.trident.topology"] == name
    assert conf[YARN] == "trident-order-1"


NAMES = [
    "Fruit_7.b-x",
    "f" * 63,
    "f" * 64,
    "f" * 200,
    "f" * 62 + "_x",
    "fruit.",
    "fruit-",
    "fruit_",
    "b\u00e4ume",
    "\u00e4",
    "-",
]


def test_every_name_has_a_label_of_its_own_that_kubernetes_takes() -> None:
    labels = [label(name) for name in NAMES]
    assert labels[:2] == NAMES[:2]
    assert len(set(labels)) == len(NAMES)
    for one in labels:
        assert re.fullmatch(r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", one), one


def test_one_submission_makes_one_pod_unless_a_person_names_it() -> None:
    tags = DriverTags(topology="fruit", order="0af1")
    assert tags.pod({}) == {POD_NAME: "trident-0af1-driver"}
    assert tags.pod({POD_NAME: "mine"}) == NO_TAGS.pod({}) == {}
