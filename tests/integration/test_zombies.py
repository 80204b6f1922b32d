"""The zombie matrix: a slow old attempt against its replacement ends as one attempt alone, on every state and sink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, StagedFiles
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.tables.appending import AppendingState
from benchmarks.zombies import ROWS, ours, stores
from tests.fixtures.object_store import Bucket

CASES = 4
TABLES = {"sink: delta table", "sink: iceberg table"}


@pytest.mark.parametrize("name", stores())
def test_whatever_an_old_attempt_still_does_the_batch_is_there_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_reference, apply_files = list[CommitTicket](), AppendingState.apply_files

    def noted(state: AppendingState, ticket: CommitTicket, files: StagedFiles) -> Applied:
        by_reference.append(ticket)
        return apply_files(state, ticket, files)

    monkeypatch.setattr(AppendingState, "apply_files", noted)
    results = ours(name, stores()[name])
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert len(results) == CASES
    assert len(by_reference) == (6 if name in TABLES else 0), "by old committers, too"


def test_the_documents_say_how_many_cases_there_are() -> None:
    page = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text(encoding="utf-8")
    many = CASES * len(stores())
    assert re.findall(r"the zombie matrix, ours \| 100 % \| 100 %: (\d+) of (\d+) ", page) == [(f"{many}", f"{many}")]


@pytest.mark.parametrize("name", ["sqlite", "sink: files", "sink: delta table"])
def test_whatever_an_old_attempt_still_stages_on_s3_the_batch_is_there_once(name: str, bucket: Bucket) -> None:
    results = ours(name, stores()[name], f"{bucket.uri}/staging")
    assert {one.case: one.rows for one in results} == {one.case: ROWS for one in results}
    assert bucket.proxy.asked["PUT"] > 8
