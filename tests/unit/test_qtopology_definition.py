"""A topology file of qtopology, read and compiled: what is meant, and what is refused with one clear error."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.storm.components.topology_file import (
    Generation,
    Input,
    TopologyDefinition,
    compile_definition,
    read_definition,
    without_comments,
)

MINIMAL: dict[str, Any] = {"general": {"heartbeat": 1000}, "spouts": [], "bolts": [], "variables": {}}


def spout(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "working_dir": ".", "cmd": "spout.js", "init": {}, **more}


def bolt(name: str = "b", *inputs: Any, **more: Any) -> dict[str, Any]:
    wires = [{"source": one} if isinstance(one, str) else one for one in inputs or ("s",)]
    return {"name": name, "working_dir": ".", "cmd": "bolt.js", "inputs": wires, "init": {}, **more}


def config(*nodes: dict[str, Any], general: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        **copy.deepcopy(MINIMAL),
        "general": {"heartbeat": 1000, **(general or {})},
        "spouts": [node for node in nodes if "inputs" not in node],
        "bolts": [node for node in nodes if "inputs" in node],
        **more,
    }


def compiled(*nodes: dict[str, Any], overrides: dict[str, str] | None = None, **more: Any) -> TopologyDefinition:
    return compile_definition(config(*nodes, **more), file="t.json", overrides=overrides)


def test_the_smallest_file_is_a_topology_without_nodes() -> None:
    found = compile_definition(MINIMAL)
    assert (found.spouts, found.bolts, found.heartbeat_ms, found.generation) == ((), (), 1000, Generation.MODULES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general": {}}, "t.json: general has no 'heartbeat'. Add it."),
        ({"general": {"heartbeat": 1.5}}, "t.json: general.heartbeat is 1.5. Make it a whole number of milliseconds"),
        ({"general": {"heartbeat": True}}, "general.heartbeat is true"),
        ({"general": {"heartbeat": 1, "weigth": 2}}, "general has an unknown key 'weigth'. Did you mean 'weight'?"),
        ({"general": {"heartbeat": 1, "wrapper": {"ping": 2}}}, "general.wrapper has an unknown key 'ping'"),
        ({"spout": []}, "t.json: the file has an unknown key 'spout'. Did you mean 'spouts'?"),
        ({"spouts": {}}, "spouts is {}. Make it a list"),
        ({"spouts": [7]}, "spouts[0] is 7. Make it an object"),
        ({"spouts": [spout(colour="red")]}, "spout 's' has an unknown key 'colour'. The keys are: args, cmd,"),
        ({"spouts": [spout(type="inprocess")]}, "Use one of inproc, module_class, module_method, sys, subproc."),
        ({"spouts": [spout(disabled=1)]}, "spout 's'.disabled is 1"),
        ({"spouts": [spout(args=[1])]}, "spout 's'.args[0] is 1. Make it a text."),
        ({"spouts": [{"name": "s"}]}, "spout 's' has no 'working_dir'"),
        ({"bolts": [{**spout("b")}]}, "bolt 'b' has no 'inputs'"),
        ({"bolts": [bolt("b", {"stream_id": "x"})]}, "bolt 'b'.inputs[0] has no 'source'"),
        ({"variables": {"A": ["x"]}}, "the variable 'A' is [\"x\"]. Give it a text."),
        ({"variables": {"A": "x", "a": "y"}}, "the variable 'a' is declared twice"),
        ({"spouts": [spout(), spout()]}, "Spout name 's' occurs several times."),
        ({"spouts": [spout("b")], "bolts": [bolt("b", "b")]}, "Bolt name 'b' occurs several times. Could also be"),
        ({"bolts": [bolt("b", "zz")]}, "Bolt 'b' is using unknown input source 'zz'. The nodes are: b."),
        ({"spouts": [spout(worker="w9")]}, "spout 's' is of the unknown worker 'w9'. The file has no workers"),
        ({"workers": [{"name": "w"}, {"name": "w"}]}, "Worker name 'w' occurs several times."),
        ({"workers": [{"name": "w"}], "spouts": [spout()]}, "spout 's' has no 'worker'. Give it one of w."),
        ({"workers": [{"name": "s"}], "spouts": [spout(worker="s")]}, "'s' is the name of a node and of a worker"),
        ({"spouts": [spout(cmd="${NO}")]}, "spout 's', cmd, uses the unknown variable ${NO}. There are: none."),
        ({"spouts": [spout(init={"a": ["${HOTS}"]})], "variables": {"host": "x"}}, "Did you mean 'host'? Or set it."),
        ({"spouts": [spout(cmd="${A}")], "variables": {"A": "${b}", "B": "${A}"}}, "in its own value (a -> b -> a)"),
        (
            {"spouts": [spout()], "bolts": [bolt("b", "s", "d"), bolt("c", "b"), bolt("d", "c")]},
            "a circle of bolts: b -> c -> d -> b. A batch goes through every bolt once",
        ),
        ({"spouts": [spout()], "bolts": [bolt("b", "b")]}, "a circle of bolts: b -> b."),
        (
            {"general": {"heartbeat": 1, "initialization": [{"working_dir": ".", "cmd": "open.js"}]}},
            "general.initialization[0] (open.js) cannot run: no process lives as long as the topology",
        ),
        (
            {"general": {"heartbeat": 1, "initialization": {"working_dir": ".", "cmd": "open.js"}}},
            "general.initialization (open.js) cannot run",
        ),
        ({"general": {"heartbeat": 1, "initialization": {"cmd": "x"}}}, "general.initialization has no 'working_dir'"),
        ({"general": {"heartbeat": 1, "initialization": 7}}, "general.initialization is 7. Make it a list"),
        ({"general": {"heartbeat": 1, "shutdown": [{"working_dir": ".", "cmd": "close.js"}]}}, '"disabled": true'),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_error_that_names_file_place_and_cure(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_definition({**MINIMAL, **change}, file="t.json")
    assert str(caught.value).startswith("t.json: ")
    assert said in str(caught.value)


def test_variables_are_replaced_everywhere_whatever_their_case_and_chained_and_numbers_stay() -> None:
    found = compiled(
        spout(
            cmd="${b}", working_dir="${A}/${A}", args=["-x", "${ a }"], init={"deep": [{"x": "<${B}>", "n": 3}, None]}
        ),
        variables={"A": "x", "B": "${A}/y"},
    )
    (node,) = found.spouts
    assert (node.cmd, node.working_dir, node.args) == ("x/y", "x/x", ("-x", "x"))
    assert node.init == {"deep": [{"x": "<x/y>", "n": 3}, None]}


def test_an_override_counts_instead_of_the_file_and_may_give_what_the_file_does_not_declare() -> None:
    found = compiled(spout(cmd="${a}/${new}"), variables={"A": "x"}, overrides={"a": "z", "NEW": "n"})
    assert found.spouts[0].cmd == "z/n"
    with pytest.raises(
        ConfigurationError, match=r"the variable 'AA' was set, and is not in the file. Did you mean 'a'"
    ):
        compiled(spout(), variables={"A": "x"}, overrides={"AA": "z"})


@pytest.mark.parametrize(("said", "live"), [("true", 0), ("${FLAG}", 0), ("no", 1), ("True", 1), (True, 0), (False, 1)])
def test_a_part_is_disabled_by_true_alone(said: bool | str, live: int) -> None:
    assert len(compiled(spout(disabled=said), variables={"FLAG": "true"}).spouts) == live


def test_disabled_nodes_and_wires_are_left_out_and_so_is_a_bolt_into_which_nothing_comes() -> None:
    found = compiled(
        spout("s"),
        spout("off", disabled=True),
        bolt("b", "s", "off", {"source": "s", "stream_id": "x", "disabled": True}),
        bolt("idle", "off"),
        bolt("after", "idle", disabled="true"),
        bolt("then", "idle"),
    )
    assert [one.name for one in (*found.spouts, *found.bolts)] == ["s", "b"]
    assert found.bolts[0].inputs == (Input(source="s"),)
    assert found.notes == (
        "spout 'off' is disabled",
        "bolt 'b': its input 's' is disabled",
        "bolt 'after' is disabled",
        "bolt 'idle' is left out: nothing comes into it",
        "bolt 'then' is left out: nothing comes into it",
    )


def test_what_a_disabled_node_says_is_checked_and_its_name_may_be_a_source() -> None:
    with pytest.raises(ConfigurationError, match=r"bolt 'b', init, uses the unknown variable"):
        compiled(spout(), bolt("b", init={"x": "${NO}"}, disabled=True))
    assert compiled(spout("s"), bolt("b", "s", "gone"), bolt("gone", "s", disabled=True)).bolts[0].inputs


def test_hooks_that_are_disabled_are_no_reason_to_refuse_a_file() -> None:
    hook = {"working_dir": ".", "cmd": "x.js", "disabled": "${OFF}"}
    compiled(spout(), general={"initialization": [hook], "shutdown_hard": [hook]}, variables={"OFF": "true"})
    compiled(spout(), general={"initialization": hook, "shutdown": hook}, variables={"OFF": "true"})


def test_bolts_stand_behind_their_sources_and_wires_keep_their_streams_and_their_number() -> None:
    found = compiled(
        spout(),
        bolt("last", "b", {"source": "b", "stream_id": "x"}, {"source": "b", "stream_id": "x"}),
        bolt("b", "s", allow_parallel=True),
        bolt("other", {"source": "s", "stream_id": "$default"}, {"source": "s", "stream_id": ""}),
    )
    assert [one.name for one in found.bolts] == ["b", "other", "last"]
    assert [wire.stream_id for wire in found.bolts[2].inputs] == [None, "x", "x"]
    assert found.streams_of("b") == (None, "x")
    assert found.streams_of("s") == (None,)
    assert [one.name for one in found.ends] == ["other", "last"]
    assert found.bolts[0].allow_parallel


def test_a_file_of_the_first_generation_has_workers_and_programs_and_each_worker_has_its_own_nodes() -> None:
    found = compiled(
        spout(worker="w1", args=["-a", "1"]),
        bolt("b", "s", worker="w2"),
        bolt("c", "b", worker="w2", type="inproc"),
        general={"name": "first", "coordination_port": 9289},
        workers=[{"name": "w1"}, {"name": "w2"}],
    )
    assert (found.generation, found.name, found.workers) == (Generation.SEED, "first", ("w1", "w2"))
    assert [one.type for one in (*found.spouts, *found.bolts)] == ["subproc", "subproc", "inproc"]
    assert found.notes == ("coordination_port is not used: workers meet in ZooKeeper",)
    assert {one.name: one.worker for one in (*found.spouts, *found.bolts)} == {"s": "w1", "b": "w2", "c": "w2"}


def test_compiling_does_not_change_what_it_is_given() -> None:
    given = config(spout(init={"a": "${A}"}, disabled="${A}"), bolt("b"), variables={"A": "x"})
    before = copy.deepcopy(given)
    found = compile_definition(given)
    assert given == before
    given["spouts"][0]["init"]["a"] = "changed"
    assert found.spouts[0].init == {"a": "x"}


def test_a_file_may_have_comments_and_what_looks_like_one_in_a_text_stays(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    text = json.dumps(config(spout(init={"url": "http://x/*no*/", "quote": '\\"//'})), indent=1)
    path.write_text(f"// of qtopology\n/* two\nlines */{text} // the end", encoding="utf-8-sig")
    found = read_definition(path)
    assert found.spouts[0].init == {"url": "http://x/*no*/", "quote": '\\"//'}
    assert found.file == str(path)


def test_lines_and_columns_stay_where_comments_were() -> None:
    assert without_comments('{"a": 1 /* x\ny */, // z\n"b": "//"}') == '{"a": 1     \n    ,     \n"b": "//"}'
    assert without_comments('"open // no') == '"open      '


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory). Name a file of qtopology."),
        (b'{"general": }', "it is no JSON (Expecting value: line 1 column 13"),
        (b"\xff", "it is no UTF-8"),
        (b"[]", "the file is []. Make it an object"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "topology.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_definition(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
