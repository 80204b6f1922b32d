"""One word, one thing: no two types of the package share a name, and files of one name are about the same thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.fixtures.source import tree_of

PACKAGE = Path(__file__).parents[2] / "airflow_trident"

SAME_TYPE = {"Split": "Trident's function that splits text; and a split of a source, which one task reads, as in Spark"}
"""Type names that two modules may both define, and why."""

SAME_FILE = {
    "aggregate.py": "aggregations of a batch: the verbs, and how batches of Arrow do them",
    "announcements.py": "who brings which asset event: the list, its verbs, and who calls them",
    "answers.py": "what a request is answered with",
    "app.py": "the main file that spark-submit is given",
    "backfill.py": "the operator, and the verb that it calls",
    "base.py": "what everything in the room derives from",
    "checkpoint.py": "the checkpoint protocol of stateful functions, and who drives it",
    "checks.py": "what is asked of the arguments when something is built",
    "codec.py": "values to bytes and back",
    "drain.py": "the operator, and the loop that it runs",
    "engine.py": "the contract of engines, and the one of Spark",
    "errors.py": "errors; in a room, those of its library as ours",
    "expressions.py": "column expressions, and how Spark evaluates them",
    "ledger.py": "the ledger: the store of transactions, and the commands that read it",
    "local.py": "in this process, with no server",
    "memory.py": "kept in the memory of this process",
    "metadata.py": "metadata of transactions: how the ledger keeps them, and how spouts read them",
    "outcomes.py": "the coordinator's last outcome: the record, its verb, its words",
    "partitions.py": "partitions of a bound topology: the calendar, the ledger's verbs, and requests for them",
    "query.py": "queries of states: the operator, the command, the verb that they call",
    "redis.py": "Redis",
    "rows.py": "rows: of the page, and the verbs on tuples",
    "script.py": "PySpark scripts: what a user declares, and how one is run",
    "settings.py": "options: of the package, and of ZooKeeper",
    "spark_submit.py": "a drain as a submitted application: the operator, and what it does",
    "spout.py": "the contract of spouts, and the spout of each room",
    "spouts.py": "Storm's spouts, and spouts in other programs",
    "sql.py": "SQL: connections, queries and expressions, sources",
    "sqlite.py": "SQLite",
    "state.py": "the contract of states, and the state of each room",
    "table.py": "a table that others write, too, in each format",
    "telemetry.py": "what is told to a monitor",
    "topology.py": "a topology: what a user builds, and its record in the ledger",
    "transaction.py": "the tasks of one transaction: operators, and the trigger of the turn",
    "wing.py": "a wing: its contract, and what each adds to the rooms below",
    "workers.py": "the list of live workers: its record, and the command",
    "zookeeper.py": "ZooKeeper: the connection, and the commands",
}
"""File names that several rooms use, and the one thing that they all mean by it."""


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def types_of(tree: ast.Module) -> Iterator[str]:
    """Public classes and aliases of types that a module defines."""
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if name[0].isupper() and not name.isupper():
                    yield name


def shared(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: rooms for name, rooms in places.items() if len(rooms) > 1}


def shared_types() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for name in types_of(tree_of(module)):
            places[name].append(str(module.relative_to(PACKAGE)))
    return shared(places)


def shared_files() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        places[module.name].append(str(module.parent.relative_to(PACKAGE)))
    return shared(places)


def test_no_two_types_of_the_package_share_a_name() -> None:
    unknown = {name: rooms for name, rooms in shared_types().items() if name not in SAME_TYPE}
    assert unknown == {}, "rename the one that is further from the word of Storm, Airflow or Spark"


def test_files_that_share_a_name_are_about_the_same_thing() -> None:
    unknown = {name: rooms for name, rooms in shared_files().items() if name not in SAME_FILE}
    assert unknown == {}, "rename one, or say in SAME_FILE what all of them are about"


def test_the_lists_hold_nothing_that_is_no_longer_shared() -> None:
    assert SAME_TYPE.keys() - set(shared_types()) == set(), "take it off the list"
    assert SAME_FILE.keys() - set(shared_files()) == set(), "take it off the list"


def test_every_type_is_seen() -> None:
    code = "class Aa: ...\nBb: TypeAlias = int\nCc = tuple[int]\n_Dd = int\nE_F = 1\ng = 1\nclass _Hh: ..."
    assert list(types_of(ast.parse(code))) == ["Aa", "Bb", "Cc"]
