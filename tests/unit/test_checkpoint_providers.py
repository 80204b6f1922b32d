"""State providers by name: built in, of other packages, by dotted path; and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_trident import KeyValueStates
from airflow_trident.errors import ConfigurationError, MissingExtraError
from airflow_trident.states.keyvalue.base import BUILT_IN, GROUP, BuiltIn, make_provider, provider_class
from airflow_trident.states.keyvalue.memory import MemoryStateProvider
from airflow_trident.states.keyvalue.sqlite import SqliteStateProvider


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, **points: str) -> None:
    """A package with entry points, as pip would leave it."""
    info = folder / package / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {target}" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
    monkeypatch.syspath_prepend(str(folder / package))


def test_the_built_in_providers_are_found_by_name() -> None:
    assert make_provider("memory", {}) == MemoryStateProvider()
    assert make_provider("sqlite", {"path": "x.db"}) == SqliteStateProvider("x.db")
    kinds = [provider_class(name).__name__ for name in BUILT_IN]
    assert kinds == ["MemoryStateProvider", "SqliteStateProvider", "RedisStateProvider"]


@pytest.mark.parametrize("separator", [":", "."])
def test_a_class_is_found_by_dotted_path(separator: str) -> None:
    assert provider_class(f"tests.programs.watched{separator}WatchedProvider").__name__ == "WatchedProvider"


def test_the_provider_of_another_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other", watched="tests.programs.watched:WatchedProvider")
    assert provider_class("watched").__name__ == "WatchedProvider"


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other", watched="tests.programs.watched:WatchedProvider")
    with pytest.raises(ConfigurationError, match=r"named 'redys'\. Known are memory, redis, sqlite, watched, or"):
        KeyValueStates("redys")


def test_two_packages_with_one_name_are_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "one", kept="tests.programs.watched:WatchedProvider")
    install(tmp_path, monkeypatch, "two", kept="airflow_trident.states.keyvalue.memory:MemoryStateProvider")
    with pytest.raises(ConfigurationError, match="several state providers are named 'kept'") as raised:
        provider_class("kept")
    assert "watched:WatchedProvider of one" in str(raised.value)
    assert "MemoryStateProvider of two" in str(raised.value)


def test_a_package_cannot_take_the_name_of_a_built_in_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other", sqlite="tests.programs.watched:WatchedProvider")
    with pytest.raises(ConfigurationError, match=r"several .* 'sqlite': .* of airflow-trident, .* of other"):
        make_provider("sqlite", {"path": "x.db"})


def test_a_missing_driver_names_the_extra_to_install() -> None:
    absent = {"far": BuiltIn("absent_driver_of_far.provider:FarProvider", extra="far")}
    with pytest.raises(MissingExtraError, match=r"'absent_driver_of_far'.*Install airflow-trident\[far\]"):
        provider_class("far", absent)


def test_a_missing_module_of_another_package_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other", far="absent_module_of_other:Provider")
    with pytest.raises(MissingExtraError, match=r"'absent_module_of_other'.*Install what other needs"):
        provider_class("far")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent_package.module:Provider", "no module 'absent_package'"),
        ("tests.programs.watched:Nothing", "'Nothing' in 'tests.programs.watched' does not exist"),
        ("tests.programs.watched:WatchedState", "is no StateProvider"),
        ("tests.programs.watched:watchers", "is no StateProvider"),
        ("with space.x", "no state provider is named"),
        ("", "no state provider is named"),
    ],
)
def test_a_path_that_leads_to_no_provider_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        provider_class(name)


@pytest.mark.parametrize(
    ("name", "config"), [("sqlite", {}), ("sqlite", {"path": "x", "folder": "y"}), ("memory", {"path": "x"})]
)
def test_a_configuration_that_does_not_fit_is_refused_on_the_users_line(name: str, config: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' cannot be made with the configuration"):
        KeyValueStates(name, dict(config))


def test_naming_a_provider_opens_nothing_and_imports_no_driver(tmp_path: Path) -> None:
    program = (
        "import sys; from airflow_trident import KeyValueStates; "
        f"KeyValueStates('memory'); assert 'sqlite3' not in sys.modules; "
        f"KeyValueStates('sqlite', {{'path': {str(tmp_path / 'x' / 'y.db')!r}}}); "
        "assert not {'pyarrow', 'pyspark', 'kazoo', 'airflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert list(tmp_path.iterdir()) == []
