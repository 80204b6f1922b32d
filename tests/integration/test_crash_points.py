"""P9: from a kill at any point, running again reaches the same final state as no kill at all. The kills are SIGKILL."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.object_store import Bucket
from tests.fixtures.program import run_program
from tests.programs.word_count import LINES, TRANSACTIONS, contents, topology
from tools.kills import VARIABLE

REPOSITORY = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.zookeeper

EXPECTED_WORDS = sum(len(line.split()) for (line,) in LINES)


def run(hosts: str, root: str, folder: Path, crash: str = "", *more: str, staging: str = "") -> int:
    where = {"STAGING": staging} if staging else {}
    return run_program("word_count", hosts, root, folder, *more, **{VARIABLE: crash}, **where)


@pytest.fixture(params=["a folder", "S3", "the ledger"])
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "S3":
        bucket: Bucket = request.getfixturevalue("bucket")
        return f"{bucket.uri}/staging"
    if request.param == "the ledger":
        return "262144"
    return str(tmp_path / "staging")


@pytest.fixture(scope="module")
def undisturbed(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(zookeeper.hosts, "/undisturbed", folder) == 0
    found = contents(folder)
    assert sum(value for _, (value,) in found["count"]) == EXPECTED_WORDS  # type: ignore[misc,has-type,attr-defined]
    return found


def test_p9_killed_at_every_point_one_after_the_other_ends_the_same(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path, staging: str, undisturbed: dict[str, list[object]]
) -> None:
    points = ",".join(f"{point}@4:{tmp_path}/{point}" for point in Milestone)
    kills = 0
    while code := run(zookeeper.hosts, ledger_root, tmp_path, points, staging=staging):
        assert code == -signal.SIGKILL
        kills += 1
    assert kills == len(Milestone)
    assert contents(tmp_path) == undisturbed
    settings = ZooKeeperSettings(hosts=zookeeper.hosts)
    with open_ledger(settings, topology(tmp_path).name, root=ledger_root) as ledger:
        assert [(tx.txid, tx.status) for tx in ledger.transactions()] == [
            (number, Status.COMMITTED) for number in range(1, TRANSACTIONS + 1)
        ]


@pytest.mark.parametrize(
    ("pending", "staging"), [("1", "a folder"), ("3", "S3"), ("3", "the ledger")], indirect=["staging"]
)
def test_p9_a_drain_killed_at_every_point_while_others_are_under_way_ends_the_same(
    pending: str,
    zookeeper: EmbeddedZooKeeper,
    ledger_root: str,
    tmp_path: Path,
    staging: str,
    undisturbed: dict[str, list[object]],
) -> None:
    points = ",".join(f"{point}@3:{tmp_path}/{point}" for point in Milestone)
    kills = 0
    while run(zookeeper.hosts, ledger_root, tmp_path, points, pending, staging=staging) != 0:
        kills += 1
        assert kills <= len(Milestone)
    assert kills == len(Milestone)
    assert contents(tmp_path) == undisturbed
