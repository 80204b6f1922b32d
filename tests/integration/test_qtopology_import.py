"""A topology file of qtopology as a topology, with its spouts and bolts unmodified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm import from_qtopology
from airflow_trident.topology.stream import Stream
from tests.fixtures.child import COMPONENTS, needs_node


def bolt(name: str, cmd: str, *inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "working_dir": "${DIR}", "cmd": cmd, "inputs": list(inputs), "init": {}, **more}


SPOUT = {"name": "numbers", "working_dir": "${DIR}", "cmd": "number_module.js", "init": {"items": 4}}
TAGGER = bolt("tagger", "tagger.js", {"source": "numbers"}, {"source": "numbers", "stream_id": "odd"})


def written(folder: Path, *bolts: dict[str, Any], spout: dict[str, Any] | None = None) -> str:
    path = folder / "numbers.json"
    variables = {"DIR": COMPONENTS}
    content = {
        "general": {"heartbeat": 60000},
        "spouts": [spout or SPOUT],
        "bolts": list(bolts),
        "variables": variables,
    }
    path.write_text(json.dumps(content))
    return str(path)


def run(topology: Topology, folder: Path) -> None:
    with MemoryLedger(topology.name) as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(folder / "staging")).run(
            max_transactions=1
        )


def counted(folder: Path, keys: str) -> Any:
    def state(stream: Stream) -> None:
        stream.group_by(keys).persistent_aggregate(SqliteState(str(folder / "counts.db")), Count(), "count")

    return state


def contents(topology: Topology) -> dict[tuple[Any, ...], int]:
    spec = topology.states["count"]
    with spec.factory.make_state(spec) as state:
        return {key: value[0] for key, value in state.items()}


@needs_node
def test_modules_run_as_a_topology_with_their_streams_and_whole_objects(tmp_path: Path) -> None:
    topology = from_qtopology(
        written(tmp_path, TAGGER),
        spool_dir=str(tmp_path / "spool"),
        fields={"tagger": "n long, stream string, has_extra boolean"},
        states={"tagger": counted(tmp_path, "n, stream, has_extra")},
    )
    assert topology.name == "numbers"
    run(topology, tmp_path)
    assert contents(topology) == {
        (4, "none", True): 1,
        (3, "odd", True): 1,
        (2, "none", True): 1,
        (1, "odd", True): 1,
    }


@needs_node
def test_bolts_feed_bolts_typed_or_whole_and_one_that_nobody_reads_is_a_sink(tmp_path: Path) -> None:
    recorder = bolt("recorder", "recorder.js", {"source": "tagger"}, {"source": "tagger"})
    recorder["init"] = {"file": str(tmp_path / "told")}
    for fields in ({}, {"tagger": "n long, stream string"}):
        told = tmp_path / "told"
        told.unlink(missing_ok=True)
        folder = tmp_path / str(len(fields))
        folder.mkdir()
        topology = from_qtopology(
            written(folder, TAGGER, recorder), name="told", spool_dir=str(folder / "spool"), fields=fields
        )
        assert any("not exactly once: state recorder" in note for note in topology.compile().notes)
        run(topology, folder)
        assert sorted(json.loads(line)["n"] for line in told.read_text().splitlines()) == [1, 1, 2, 2, 3, 3, 4, 4]


@needs_node
def test_declared_fields_are_for_the_state_and_the_next_bolt_gets_the_whole_object(tmp_path: Path) -> None:
    told = tmp_path / "told"
    recorder = bolt("recorder", "recorder.js", {"source": "tagger"}) | {"init": {"file": str(told)}}
    topology = from_qtopology(
        written(tmp_path, TAGGER, recorder),
        spool_dir=str(tmp_path / "spool"),
        fields={"tagger": "n long", "numbers": "n long"},
        states={"tagger": counted(tmp_path, "n")},
    )
    run(topology, tmp_path)
    assert contents(topology) == {(n,): 1 for n in (1, 2, 3, 4)}
    objects = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted((made["n"], made["stream"], made["has_extra"]) for made in objects) == [
        (1, "odd", True),
        (2, "none", True),
        (3, "odd", True),
        (4, "none", True),
    ]


@needs_node
def test_the_telemetry_of_a_bolt_comes_once_for_each_partition(tmp_path: Path) -> None:
    told = tmp_path / "told"
    recorder = bolt("recorder", "recorder.js", {"source": "tagger", "stream_id": "$telemetry"})
    recorder["init"] = {"file": str(told)}
    topology = from_qtopology(written(tmp_path, TAGGER, recorder), spool_dir=str(tmp_path / "spool"))
    run(topology, tmp_path)
    messages = [json.loads(line) for line in told.read_text().splitlines()]
    assert sum(message["total"]["cnt"] for message in messages) == 4
    for message in messages:
        assert message["name"] == "tagger"
        assert message["last"] == message["total"]
        assert message["last"]["avg"] > 0
        assert message["ts"] > 0


@pytest.mark.parametrize(
    ("bolts", "options", "said"),
    [
        ([TAGGER], {"fields": {"taggr": "n long"}}, "fields names the node 'taggr'. The nodes are: numbers, tagger."),
        (
            [bolt("b", "process", {"source": "numbers"}, type="sys")],
            {},
            "numbers.json: bolt 'b': the standard bolt 'process' of qtopology acknowledges a row before",
        ),
        ([TAGGER], {"states": {"x": print}}, "states names the node 'x'"),
        (
            [bolt("b", "b.js", {"source": "numbers", "stream_id": "$telemetry"})],
            {},
            "bolt 'b' reads the telemetry of the spout 'numbers', which has none",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(
    tmp_path: Path, bolts: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_qtopology(written(tmp_path, *bolts), spool_dir=str(tmp_path / "spool"), **options)
    assert said in str(caught.value)
    assert "numbers.json" in str(caught.value)


def test_a_spout_that_serves_is_refused_with_another_way(tmp_path: Path) -> None:
    spout = {"name": "numbers", "working_dir": "", "type": "sys", "cmd": "rest", "init": {}}
    with pytest.raises(ConfigurationError, match=r"spout 'numbers' .rest. serves .* Use a queue"):
        from_qtopology(written(tmp_path, TAGGER, spout=spout), spool_dir=str(tmp_path / "spool"))


def test_what_a_file_says_of_its_workers_is_there_for_who_deploys_it(tmp_path: Path) -> None:
    path = Path(written(tmp_path, TAGGER))
    content = json.loads(path.read_text())
    content["general"] |= {"weight": 5, "worker_affinity": ["w2"]}
    content["workers"] = [{"name": "w1"}, {"name": "w2"}]
    for node in (*content["spouts"], *content["bolts"]):
        node["worker"] = "w1"
        node["type"] = "inproc"
    path.write_text(json.dumps(content))
    said = from_qtopology(str(path), spool_dir=str(tmp_path / "spool")).placement_hints
    assert (said.workers, said.weight, said.affinity) == (("w1", "w2"), 5, ("w2",))
    plain = from_qtopology(written(tmp_path, TAGGER), spool_dir=str(tmp_path / "spool"))
    assert plain.placement_hints.workers == ()
