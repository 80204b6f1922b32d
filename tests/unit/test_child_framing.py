"""How messages lie in bytes: any cut gives the same; garbage is an error or a stray line, never another message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_trident.errors import ChildProtocolError
from airflow_trident.storm.components.framing import (
    Decoder,
    Message,
    MultilangDecoder,
    NodeDecoder,
    encode_multilang,
    encode_node,
)

TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["end", "\nend\n", "\n", "\r\n", '{"cmd":"ack"}', "\x00", "é\u2028"])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(st.dictionaries(TEXTS.filter(lambda name: name != "cmd"), VALUES, max_size=3), max_size=5)
PIECES = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"end",
            b"end\n",
            b"\nend\n",
            b'{"a":1}',
            b'{"a":',
            b"1}",
            b"[1",
            b"]",
            b",",
            b"x",
            b"\xff",
            b"null",
            b" ",
        ]
    ),
    max_size=15,
).map(b"".join)
CUTS = st.lists(st.integers(1, 9), max_size=60)
BOTH = [(NodeDecoder, encode_node), (MultilangDecoder, encode_multilang)]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of these sizes; what is left is the last."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def told(decoder: Decoder, pieces: list[bytes]) -> list[Message] | str:
    """All messages, or the error's text."""
    try:
        return [message for piece in pieces for message in decoder.feed(piece)]
    except ChildProtocolError as error:
        return str(error)


def one_frame(lines: list[bytes]) -> Message | None:
    """What the lines of a multilang frame mean, by the letter: all of it, or the last line."""
    for text in (b"\n".join(lines), lines[-1]):
        try:
            found = json.loads(text.decode())
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise ChildProtocolError("no message")


@pytest.mark.parametrize(("decoder", "encode"), BOTH)
@given(messages=MESSAGES, sizes=CUTS)
def test_what_was_encoded_comes_out_whatever_the_cuts(
    decoder: type[Decoder], encode: Any, messages: list[Message], sizes: list[int]
) -> None:
    data = b"".join(map(encode, messages))
    made = decoder()
    assert told(made, cut(data, sizes)) == messages
    assert not made._buffer


@pytest.mark.parametrize("decoder", [NodeDecoder, MultilangDecoder])
@given(garbage=PIECES, sizes=CUTS)
@example(garbage=b'{"a":1}\nend\nend\n{"a":2}\nend\n', sizes=[8])
def test_garbage_means_the_same_whatever_the_cuts(decoder: type[Decoder], garbage: bytes, sizes: list[int]) -> None:
    whole, cuts = told(decoder(), [garbage]), told(decoder(), cut(garbage, sizes))
    assert isinstance(whole, str) == isinstance(cuts, str)
    assert isinstance(whole, str) or whole == cuts


@given(garbage=PIECES)
def test_multilang_frames_are_what_lies_before_lines_that_are_exactly_end(garbage: bytes) -> None:
    lines, frame, wanted = garbage.split(b"\n")[:-1], list[bytes](), list[Message]()
    failed = False
    for line in lines:
        if line != b"end":
            frame.append(line)
            continue
        try:
            if b"".join(frame).strip():
                wanted.append(one_frame(frame) or {})
        except ChildProtocolError:
            failed = True
            break
        frame = []
    given_ = told(MultilangDecoder(), [garbage])
    assert isinstance(given_, str) if failed else given_ == wanted


@given(
    before=st.lists(
        st.sampled_from([b"stray", b"[1]", b"7", b"Traceback:", b"", b'{"a":1}', b'got {"command":']),
        min_size=1,
        max_size=4,
    )
)
def test_what_a_component_prints_before_a_message_is_stray(before: list[bytes]) -> None:
    strays: list[bytes] = []
    data = b"\n".join([*before, b'{"command":"sync"}', b"end", b""])
    assert MultilangDecoder(stray=strays.append).feed(data) == [{"command": "sync"}]
    assert b"\n".join(strays) in (b"\n".join(before), b"")
    if any(before):
        assert strays
        with pytest.raises(ChildProtocolError, match="is no message"):
            MultilangDecoder(strict=True).feed(data)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"command":"emit","tuple":[1]}\n{"command":"ack","id":"0"}',
        b'stray\n {"command":"emit","tuple":[1]} stray\n{"command":"sync"}',
        b'{\n"command":"emit",\n"tuple":["{"]\n}\n{"command":"ack","id":"0"}',
        b'{"command":"ack","id":"0"}\n{"other":1}',
        b'{"pid":1}\n{"command":"sync"}',
    ],
)
def test_no_message_is_passed_over_because_another_follows_it_in_one_frame(frame: bytes) -> None:
    with pytest.raises(ChildProtocolError, match="ShellBolt 'x' said several messages before one line 'end'"):
        MultilangDecoder(subject="ShellBolt 'x'").feed(frame + b"\nend\n")


@pytest.mark.parametrize("line", [b'{"level":30,"pid":7,"msg":"hi"}', b'{"command":"npm start"}', b'say "pid"'])
def test_what_a_component_logs_as_json_is_no_message(line: bytes) -> None:
    stray: list[bytes] = []
    assert MultilangDecoder(stray=stray.append).feed(line + b'\n{"command":"sync"}\nend\n') == [{"command": "sync"}]
    assert stray == [line]


@pytest.mark.parametrize(
    "line",
    [b"x", b"null", b"[1]", b'"text"', b"7", b'{"a":1', b"[" * 100_000, b"\xff\xfe", b'{"a":1},{"b":2}', b"{} {}"],
)
@pytest.mark.parametrize(("decoder", "end"), [(NodeDecoder, b"\n"), (MultilangDecoder, b"\nend\n")])
def test_what_is_no_object_is_refused(decoder: type[Decoder], end: bytes, line: bytes) -> None:
    with pytest.raises(ChildProtocolError, match="is no message"):
        decoder().feed(line + end)


@pytest.mark.parametrize(("decoder", "encode"), BOTH)
def test_no_more_of_a_message_is_kept_than_allowed(decoder: type[Decoder], encode: Any) -> None:
    made = decoder(1000)
    assert made.feed(encode({"a": "x" * 900})) == [{"a": "x" * 900}]
    assert "longer than 1000 bytes" in told(made, [b"y" * 100] * 20)
    assert len(made._buffer) <= 1100
    with pytest.raises(ChildProtocolError, match="longer than 1000 bytes"):
        decoder(1000).feed(encode({"a": "x" * 1000}))


@pytest.mark.parametrize(("decoder", "encode"), BOTH)
def test_long_texts_of_many_bytes_a_character_come_back_the_same(decoder: type[Decoder], encode: Any) -> None:
    text = "ä€\U0001f600\nend\n" * 400_000  # 5 MB
    data, made = encode({"text": text}), decoder()
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    assert [message for piece in pieces for message in made.feed(piece)] == [{"text": text}]


@pytest.mark.parametrize(("decoder", "encode"), BOTH)
def test_texts_that_are_no_unicode_come_back_the_same(decoder: type[Decoder], encode: Any) -> None:
    sent = {"text": "\ud800", "n": [2**80, (1.5, float("nan"))], "b": b"bytes"}
    assert decoder().feed(encode(sent)) == [{"text": "\ud800", "n": [2**80, [1.5, None]], "b": "Ynl0ZXM="}]


@pytest.mark.parametrize("encode", [encode_node, encode_multilang])
def test_numbers_that_json_lacks_are_null(encode: Any) -> None:
    assert encode({"n": [float("nan"), float("inf")]}).startswith(b'{"n":[null,null]}\n')


def test_numbers_that_json_lacks_are_taken_from_a_child() -> None:
    (message,) = MultilangDecoder().feed(b'{"n": NaN}\nend\n')
    assert message["n"] != message["n"]


def test_messages_of_nodes_own_are_left_out() -> None:
    data = b'{"cmd":"NODE_HANDLE","type":"net.Socket"}\n{"cmd":"ack","data":{}}\n'
    assert NodeDecoder().feed(data) == [{"cmd": "ack", "data": {}}]
