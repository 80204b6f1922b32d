"""What a drain's driver answers, as the task reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.errors import FencedError, SparkJobError
from airflow_trident.runtime.drains.drain import DrainResult
from airflow_trident.runtime.drains.order import DrainFiles, answer, collect


@pytest.fixture
def files(tmp_path: Path) -> DrainFiles:
    return DrainFiles(order=str(tmp_path / "one.order"), result=str(tmp_path / "one.result"))


def test_an_answer_is_read_as_it_was_given(files: DrainFiles) -> None:
    assert collect(files) is None
    result = DrainResult(committed=(3, 4), rows_read=-1)
    answer(files.result, result)
    assert Path(files.result).read_text() == '{"committed": [3, 4], "rows_read": -1}'
    assert collect(files) == result
    answer(files.result, FencedError("somebody newer was here", "Nothing was changed."))
    with pytest.raises(FencedError, match="somebody newer was here"):
        collect(files)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "committed"),
        (b'{"committed": [1]}', "rows_read"),
        (b'{"committed": [true], "rows_read": 1}', r"committed\[0\]"),
    ],
)
def test_a_damaged_answer_is_an_error_that_names_the_file(files: DrainFiles, content: bytes, said: str) -> None:
    Path(files.result).write_bytes(content)
    with pytest.raises(SparkJobError, match=rf"one\.result' is damaged.*{said}"):
        collect(files)
