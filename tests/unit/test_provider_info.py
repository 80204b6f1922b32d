"""What Airflow is told about the package is valid, complete and true."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from airflow_trident.hooks.zookeeper import _EXTRAS, ZooKeeperHook
from airflow_trident.provider_info import get_provider_info

INFO = get_provider_info()


def test_provider_info_is_valid_by_airflows_schema() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(INFO, schema)


def named_in_info(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("airflow_trident."):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from named_in_info(one)
    elif isinstance(value, list):
        for one in value:
            yield from named_in_info(one)


@pytest.mark.parametrize("path", sorted(set(named_in_info(INFO))))
def test_every_module_and_class_that_provider_info_names_exists(path: str) -> None:
    try:
        importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name) is not None


def test_every_module_with_operators_sensors_or_triggers_is_named() -> None:
    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger

    import airflow_trident
    from airflow_trident import storm

    named = set(named_in_info(INFO))
    for kind in (getattr(package, public) for package in (airflow_trident, storm) for public in package.__all__):
        if isinstance(kind, type) and issubclass(kind, BaseOperator | BaseTrigger):
            assert kind.__module__ in named


def test_the_connection_form_has_every_field_that_the_hook_reads_and_no_other() -> None:
    (connection,) = INFO["connection-types"]
    assert connection["connection-type"] == ZooKeeperHook.conn_type
    assert set(connection["conn-fields"]) == _EXTRAS


def test_the_entry_point_is_this_function() -> None:
    from importlib.metadata import entry_points

    (mine,) = [point for point in entry_points(group="apache_airflow_provider") if "trident" in point.value]
    assert mine.load() is get_provider_info


@pytest.mark.parametrize("name", ["provider_info", "cli.parser"])
def test_what_every_airflow_command_reads_imports_nothing_heavy(name: str) -> None:
    heavy = ["kazoo", "pyspark", "pyarrow", "pandas", "fastapi", "airflow.models"]
    if name == "cli.parser":
        heavy.remove("airflow.models")
    program = f"import sys, airflow_trident.{name}; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_provider_info_loads_the_table_of_options_and_no_room_of_the_package() -> None:
    """Each process of Airflow reads it."""
    program = (
        "import sys, airflow_trident.provider_info; print(*[name for name in sys.modules if 'airflow_trident' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("airflow_trident.") for name in done.stdout.split()}
    light = {"airflow_trident", "version", "process_settings", "public_names", "errors", "names", "settings"}
    assert loaded <= {*light, "provider_info"}
