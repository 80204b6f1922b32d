"""Every public name is found where it is, and where an earlier version had it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import airflow_trident
from airflow_trident._moved import MODULES, NAMES

SHOWN = {
    "arrow": ("rows_to_table",),
    "connections": ("Connection",),
    "engine.local": ("LocalEngine",),
    "engine.spark": ("SparkEngine",),
    "errors": ("SourceChangedError",),
    "hooks.zookeeper": ("ZooKeeperHook",),
    "ledger.embedded": ("EmbeddedZooKeeper",),
    "ledger.memory": ("MemoryLedger",),
    "ledger.settings": ("ZooKeeperSettings", "DigestAuth", "Tls"),
    "operations.expressions": ("col", "lit", "concat", "coalesce", "explode", "lower", "split_words", "when"),
    "plan.states": ("Applied", "Capabilities", "StateFactory", "Verdict"),
    "protocol.spouts": ("Coordinator", "Emitter", "Split"),
    "runtime.checkpoints": ("checkpoints",),
    "runtime.local": ("LocalRunner",),
    "states.keyvalue": ("KeyValueState", "StateProvider"),
    "states.marker": ("AdmittingState", "admit"),
    "states.merge": ("canonical_key", "merge"),
    "triggers.turn": ("TridentTurnTrigger",),
    "types": ("parse_declared",),
}
"""What the documents of 0.1.0 imported from elsewhere than ``airflow_trident`` itself."""


@pytest.mark.parametrize("module", SHOWN)
def test_what_the_documents_ever_imported_can_be_imported(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(f"airflow_trident.{module}")
        assert all(hasattr(found, name) for name in SHOWN[module])


@pytest.mark.parametrize("old", MODULES)
def test_the_old_path_of_a_module_gives_the_module_itself_and_names_the_new_path(old: str) -> None:
    path, new = f"airflow_trident.{old}", f"airflow_trident.{MODULES[old]}"
    sys.modules.pop(path, None)
    with pytest.warns(DeprecationWarning, match=f"{path} is now {new}") as said:
        __import__(path)
    found = sys.modules[path]
    assert [one.filename for one in said] == [__file__]
    assert found is sys.modules[new]
    assert found.__name__ == found.__spec__.name == new


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in NAMES for name in NAMES[package]])
def test_a_name_of_a_module_that_is_a_package_now_is_the_same_object(package: str, name: str) -> None:
    room = import_module(f"airflow_trident.{package}")
    vars(room).pop(name, None)
    new = f"airflow_trident.{NAMES[package][name]}"
    with pytest.warns(DeprecationWarning, match=f"is now {new}.{name}") as said:
        found = getattr(room, name)
    assert [one.filename for one in said] == [__file__]
    assert found is getattr(import_module(new), name)
    with pytest.raises(AttributeError, match=f"{package}' has no attribute 'Nonsense'"):
        _ = room.Nonsense


def test_a_path_that_never_was_is_no_module() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"airflow_trident\.states\.oracle"):
        import_module("airflow_trident.states.oracle")


def test_every_public_name_is_there_and_the_package_itself_imports_nothing_of_it() -> None:
    program = (
        "import sys, airflow_trident\n"
        "print(sorted(one for one in sys.modules if one.partition('.')[0] in ('airflow_trident', 'airflow')))\n"
        "from airflow_trident import *\n"
        "print(set(airflow_trident.__all__) <= set(globals()) & set(dir(airflow_trident)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, complete = done.stdout.split("\n")[:2]
    assert loaded == "['airflow_trident', 'airflow_trident._moved', 'airflow_trident.version']"
    assert complete == "True"
    assert "OpaqueRedisStreamSpout" in airflow_trident.__all__
