r"""Lines, exactly: against what Python's own ``split`` says, for every kind of bytes, block size and cut."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_trident.spouts.files import lines
from airflow_trident.spouts.files.lines import LineTooLongError, line_start, lines_of, whole_lines

ALPHABET = [
    b"\n",
    b"\r",
    b"\r\n",
    b"\0",
    b'"',
    b",",
    b"a",
    b" ",
    "é".encode(),
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\x85",
]
TEXTS = st.lists(st.sampled_from(ALPHABET), max_size=30).map(b"".join)


def expected(text: bytes) -> list[str]:
    parts = text.split(b"\n")
    ended, last = parts[:-1], parts[-1]
    found = [part[:-1] if part.endswith(b"\r") else part for part in ended] + ([last] if last else [])
    return [part.decode(errors="replace") for part in found]


@given(TEXTS)
@example(b"")
@example(b"\n")
@example(b"\r")
@example(b"a\r")
@example(b"\r\r\n\n\r\n")
@example(b"\xf0\x9f\n\x98\x80")
def test_lines_end_with_newline_or_return_newline_and_nothing_else(text: bytes) -> None:
    array = lines_of(text)
    array.validate(full=True)
    assert array.to_pylist() == expected(text)


@given(TEXTS, st.integers(1, 7))
def test_blocks_of_any_size_give_the_same_lines(text: bytes, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        chunks = list(whole_lines(io.BytesIO(text)))
    assert b"".join(chunks) == text
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])
    assert [line for chunk in chunks for line in lines_of(chunk).to_pylist()] == expected(text)


@given(TEXTS, st.integers(1, 9), st.integers(1, 5))
def test_parts_of_any_size_hold_every_line_exactly_once(text: bytes, size: int, block: int) -> None:
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        for begin in range(0, len(text), size):
            file = io.BytesIO(text)
            first = line_start(file, begin, len(text))
            behind = line_start(file, min(begin + size, len(text)), len(text))
            file.seek(first)
            for chunk in whole_lines(file, behind - first):
                found.extend(lines_of(chunk).to_pylist())
    assert found == expected(text)


def test_a_line_starts_at_zero_behind_each_newline_and_at_the_end() -> None:
    file = io.BytesIO(b"ab\n\ncd")
    assert [line_start(file, offset, 6) for offset in range(8)] == [0, 3, 3, 3, 4, 6, 6, 6]
    assert line_start(file, -1, 6) == 0


def test_a_long_line_among_short_ones_is_whole() -> None:
    long = (bytes(range(32, 127)) * (3 * lines.BLOCK_BYTES // 95 + 1))[: 3 * lines.BLOCK_BYTES + 17]
    text = b"short\n" + long + b"\r\nend"
    found = [line for chunk in whole_lines(io.BytesIO(text)) for line in lines_of(chunk).to_pylist()]
    assert found == ["short", long.decode(), "end"]


def test_a_line_that_cannot_be_held_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 8)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    assert list(whole_lines(io.BytesIO(b"x" * 20))) == [b"x" * 20]
    with pytest.raises(LineTooLongError, match="longer than 20 bytes"):
        list(whole_lines(io.BytesIO(b"a\n" + b"x" * 21)))
