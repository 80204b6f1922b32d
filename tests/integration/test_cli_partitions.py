"""``airflow trident partitions`` and ``backfill --partition``, and single transactions named by their partition."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.fixtures.airflow import AirflowHome, airflow_home
from tests.fixtures.cli import Site

__all__ = ["airflow_home"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]

MODULE = """
from pathlib import Path

from airflow_trident import FileSpout, Partitions, SqliteState, Sum, Topology

FOLDER = Path(__file__).parent.parent
topology = Topology("shop", partitions=Partitions("day", begin="2026-01-01"))
orders = topology.new_stream(
    "orders", FileSpout(f"{FOLDER}/in/day={{partition}}/*.json", format="json", fields="shop string, cents long")
)
orders.group_by("day, shop").persistent_aggregate(
    SqliteState(str(FOLDER / "shop.db")), "cents", Sum(), "cents", name="sales"
)
unbound = Topology("all_days")
unbound.new_stream("orders", FileSpout(f"{FOLDER}/in/*/*.json", format="json", fields="shop string, cents long"))
"""
CODE = "--dag-file dags/shop_topology.py:topology"
FIRST, SECOND, THIRD, FOURTH = (f"2026-01-0{day}" for day in range(1, 5))
RANGE = f"--from {FIRST} --to {FOURTH}"
BACKFILL = f"backfill shop {CODE} --engine local"


@pytest.fixture
def shop(airflow_home: AirflowHome) -> Site:
    airflow_home.write_dag("shop_topology", MODULE)
    return Site(airflow_home, sys.modules[__name__])


def deliver(site: Site, key: str, cents: int | str, name: str = "a") -> Path:
    path = site.home.folder / "in" / f"day={key}" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"shop": "x", "cents": cents}) + "\n")
    return path


def sales(site: Site) -> dict[str, int]:
    topology = runpy.run_path(str(site.home.dags / "shop_topology.py"))["topology"]
    spec = topology.states["sales"]
    with spec.factory.make_state(spec) as state:
        return {key[0].isoformat(): cents for key, (cents,) in state.items()}


def test_partitions_are_listed_and_done_as_a_person_names_them(shop: Site) -> None:
    for key, cents in ((FIRST, 1), (SECOND, 2), (THIRD, 3)):
        deliver(shop, key, cents)
    damaged = deliver(shop, SECOND, "two")
    nothing, missing, listed, again, as_table = shop.tridents(
        "partitions shop",
        f"{BACKFILL} --missing {RANGE}",
        f"partitions shop {RANGE} -o json",
        f"{BACKFILL} --partition {FIRST}",
        f"partitions shop --failed {RANGE} -o plain",
    )
    assert "there is no ledger of a topology 'shop'" in nothing.error
    assert missing.code == 1
    assert f"partition {SECOND}: failed: " in missing.out, missing.out + missing.err
    assert f"partition {FOURTH}: failed: no source of topology 'shop' has data" in missing.out
    assert "topology shop: 2 committed, 2 failed, 2 rows read" in missing.out
    rows = {row["partition"]: row for row in listed.json()}
    assert {key: (row["status"], row["revision"]) for key, row in rows.items()} == {
        FIRST: ("COMMITTED", 1),
        SECOND: ("FAILED", 1),
        THIRD: ("COMMITTED", 1),
        FOURTH: ("MISSING", None),
    }
    assert rows[FIRST]["rows"] == {"sales": 1}
    assert rows[FIRST]["committed"].startswith("20")
    assert "two" in rows[SECOND]["error"]
    assert again.code == 0
    assert f"partition {FIRST}: committed as transaction 1, and its sources are as they were; --redo" in again.out
    assert as_table.code == 1
    assert [line.split()[0] for line in as_table.out.splitlines()] == ["partition", SECOND]

    damaged.write_text(json.dumps({"shop": "x", "cents": 20}))
    deliver(shop, FIRST, 10, name="late")
    looked, changed, failed, redone, done = shop.tridents(
        f"partitions shop --changed {RANGE} {CODE} -o json",
        f"{BACKFILL} --changed --partition {FIRST} --to {FOURTH}",
        f"{BACKFILL} --failed",
        f"{BACKFILL} --partition {SECOND} --to {THIRD} --redo --reason 'the function was wrong'",
        f"partitions shop --failed {RANGE}",
    )
    assert [(row["partition"], row["changed"]) for row in looked.json()] == [(FIRST, "1 new")]
    assert looked.code == 1
    assert "topology shop: 1 committed, 2 rows read" in changed.out, changed.out + changed.err
    assert "topology shop: 1 committed, 1 rows read" in failed.out, failed.out + failed.err
    assert "topology shop: 2 committed, 2 rows read" in redone.out, redone.out + redone.err
    assert (done.code, done.out) == (0, "topology shop: no partition is failed\n")
    assert sales(shop) == {FIRST: 11, SECOND: 20, THIRD: 3}

    damaged.unlink()
    kept, emptied, drained, shown = shop.tridents(
        f"{BACKFILL} --partition {SECOND} --redo",
        f"{BACKFILL} --partition {SECOND} --gone take --empty take --reason 'test orders'",
        f"drain shop {CODE} --engine local --max-transactions 1",
        "ledger show shop 8 -o json",
    )
    assert kept.code == 1
    assert "are gone" in kept.out
    assert emptied.code == 0, emptied.out + emptied.err
    assert sales(shop) == {FIRST: 11, THIRD: 3}
    assert drained.code == 1
    assert f"partition {FOURTH}: failed" in drained.out
    assert shown.json()["accepted"][0].startswith("test orders (asked by ")


def test_a_transaction_is_named_by_its_partition(shop: Site) -> None:
    deliver(shop, FIRST, "one")
    failed, replayed, found, nothing, both, accepted, none, skipped = shop.tridents(
        f"{BACKFILL} --partition {FIRST}",
        f"replay shop {CODE} --partition {FIRST} --dry-run --engine local",
        f"bisect shop {CODE} --partition {FIRST}",
        f"bisect shop {CODE}",
        f"skip shop 1 --partition {FIRST}",
        f"accept-source shop {CODE} --partition {FIRST} --reason mended",
        f"skip shop --partition {SECOND}",
        f"skip shop --partition {FIRST}",
    )
    assert failed.code == 1
    assert 'holds "one"' in found.error
    assert replayed.code == 1
    for refused in (nothing, both):
        assert "which transaction? Give its number, or --partition KEY" in refused.error
    assert accepted.code == 1, "its source has not changed"
    assert f"the partition {SECOND} of topology 'shop' has no transaction" in none.error
    assert f"`airflow trident backfill shop --partition {FIRST}` does it again" in skipped.out, skipped.err


def test_partitions_that_cannot_be_meant_are_refused(shop: Site) -> None:
    refusals = {
        f"{BACKFILL} --partition 2026-1-1": "is no key of a day",
        f"{BACKFILL} --partition {FIRST} --txid 4": "and no transaction",
        f"{BACKFILL} --missing --changed": "Give one of --missing, --changed and --failed",
        f"{BACKFILL} --missing --redo": "Leave it out beside --missing",
        f"{BACKFILL} --txid 4 --redo": "--redo is for partitions",
        f"{BACKFILL} --from {FIRST}": "a range of partitions has two ends",
        f"{BACKFILL} --partition {SECOND} --to {FIRST}": f"the partition {SECOND} is after {FIRST}",
        f"{BACKFILL} --partition 2999-01-01": "is in the future",
        "backfill all_days --dag-file dags/shop_topology.py:unbound --missing": "is not bound to partitions",
        BACKFILL: "which transactions?",
    }
    for line, result in zip(refusals, shop.tridents(*refusals), strict=True):
        assert result.code in (1, 2), line
        assert refusals[line] in result.out + result.err, line
