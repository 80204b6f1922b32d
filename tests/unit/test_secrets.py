"""Secrets stand in no representation and in no error: both come into logs, plans, the ledger and the page."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from typing import Any

import pytest

import airflow_trident
from airflow_trident import KeyValueStates
from airflow_trident.errors import ConfigurationError
from airflow_trident.storm import NodeBolt, ShellBolt, TransactionalTopologyBuilder
from airflow_trident.storm.config import read_config
from airflow_trident.testing import MemoryTransactionalSpout

SECRET = "swordfish-4711"
MAY_HOLD_SECRETS = ("config", "conf", "env", "init", "password", "key_password", "token", "secret", "headers", "config")
NO_SECRETS = {
    ("WindowUpdater", "config"): "the lengths of a window",
    ("Polled", "token"): "ids of tuples, to acknowledge them",
}
"""Fields of such a name that hold no secret, and what they hold."""


def test_no_record_shows_a_field_that_may_hold_a_secret() -> None:
    shown = []
    for found in pkgutil.walk_packages(airflow_trident.__path__, "airflow_trident."):
        module = importlib.import_module(found.name)
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != found.name or not dataclasses.is_dataclass(kind):
                continue
            shown += [
                f"{found.name}.{kind.__name__}.{field.name}"
                for field in dataclasses.fields(kind)
                if field.repr and field.name in MAY_HOLD_SECRETS and (kind.__name__, field.name) not in NO_SECRETS
            ]
    assert not shown, f"add repr=False to these, or say in NO_SECRETS what they hold: {shown}"


@pytest.mark.parametrize(
    "made",
    [
        lambda: KeyValueStates("redis", {"host": "localhost", "password": SECRET}),
        lambda: read_config({"topology.state.provider.config": {"password": SECRET}, "my.password": SECRET}),
        lambda: ShellBolt("python split.py", env={"TOKEN": SECRET}, conf={"token": SECRET}),
        lambda: NodeBolt("split.js", init={"token": SECRET}),
        lambda: (
            TransactionalTopologyBuilder(
                "t", "s", MemoryTransactionalSpout({0: [("a",)]}, "word string", 1), conf={"my.password": SECRET}
            ).config
        ),
    ],
)
def test_what_is_made_with_a_secret_does_not_show_it(made: Any) -> None:
    thing = made()
    assert SECRET not in f"{thing!r} {thing} {thing.describe() if hasattr(thing, 'describe') else ''}"


@pytest.mark.parametrize(
    "value",
    [
        json.dumps({"password": SECRET})[:-1],
        json.dumps([SECRET]),
        {"jedisPoolConfig": SECRET},
        {"jedisPoolConfig": {"password": SECRET, "maxTotal": 8}},
        {"jedisPoolConfig": {"password": SECRET, "timeout": "soon"}},
    ],
)
def test_an_error_of_a_configuration_names_it_and_shows_no_value(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"topology\.state\.provider\.config|timeout") as raised:
        read_config({"topology.state.provider.config": value})
    assert SECRET not in str(raised.value)


def test_an_unknown_argument_of_a_provider_is_named_without_the_values() -> None:
    with pytest.raises(ConfigurationError, match="passwort") as raised:
        KeyValueStates("redis", {"host": "localhost", "passwort": SECRET})
    assert SECRET not in str(raised.value)
