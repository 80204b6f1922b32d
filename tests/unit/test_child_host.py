"""The host of qtopology's modules, spoken to message by message."""

from __future__ import annotations

import json
import time

from airflow_trident.storm.components.framing import Message
from airflow_trident.storm.components.process import Carrier, Channel, Program
from airflow_trident.storm.components.qtopology import script
from tests.fixtures.child import COMPONENTS, needs_node

pytestmark = needs_node
LIMIT_S = 60.0


def said_to(kind: str, cmd: str, *messages: Message, last: str) -> list[Message]:
    """All that it answers. It is asked to end when `last` is in its JSON, and what it says then counts, too."""
    node = {"type": "inproc", "working_dir": COMPONENTS, "cmd": cmd}
    argv = ("node", script("host.js"), kind, json.dumps(node))
    heard: list[Message] = []
    with Channel(Program(argv=argv, carrier=Carrier.NODE), "the host") as channel:
        for message in messages:
            channel.send(message)
        end_s = time.monotonic() + LIMIT_S
        while last not in json.dumps(heard) and not channel.eof:
            assert time.monotonic() < end_s, f"after {LIMIT_S} s it has said only {heard}"
            heard += channel.pump(LIMIT_S)
        channel.send({"cmd": "shutdown"})
        assert channel.ended(LIMIT_S, heard.append) == 0
    return heard


def test_next_before_run_has_exactly_one_answer_as_any_next() -> None:
    heard = said_to(
        "spout",
        "number_module.js",
        {"cmd": "init", "data": {"name": "numbers", "items": 1}},
        *({"cmd": cmd} for cmd in ("next", "next", "run", "next", "pause", "next", "heartbeat")),
        last="heartbeat_done",
    )
    assert [message["cmd"] for message in heard] == [
        "init_completed",
        *("empty", "empty", "data", "empty"),
        "heartbeat_done",
    ]


def test_an_ack_of_an_emit_that_nobody_knows_is_ignored() -> None:
    row = [4710, {"line": "snow white"}, None]
    heard = said_to(
        "bolt",
        "splitter.js",
        {"cmd": "init", "data": {"name": "split"}},
        {"cmd": "ack", "data": {"id": 4711}},
        {"cmd": "batch", "data": [row]},
        {"cmd": "ack", "data": {"id": 4711}},
        last="[4710]",
    )
    assert heard[0]["cmd"] == "init_completed"
    told = [one for message in heard[1:] if message["cmd"] == "batch" for one in message["data"]]
    assert told == [
        [4710, {"word": "snow", "length": 4}, None],
        [4710, {"word": "white", "length": 5}, None],
        [4710],
    ]
    assert {message["cmd"] for message in heard[1:]} == {"batch"}
