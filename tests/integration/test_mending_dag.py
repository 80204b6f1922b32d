"""The DAG behind the page's buttons, in a real Airflow (``dag.test()``), with the topology's own code."""

from __future__ import annotations

import pytest

from airflow_trident.protocol.records import Status
from tests.fixtures.airflow import AirflowHome
from tests.fixtures.page import MENDING
from tests.integration.test_airflow_tasks import PROGRAM, write_words

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

ORDERS = (
    PROGRAM
    + '''
from mending import dag as mending
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

def incarnation():
    with ledger() as one:
        return one.topology().incarnation

def order(action, **more):
    """[the task's state, what it returned]"""
    conf = {"action": action, "topology": "words", "dag_id": "words", "reason": "because", "by": "uwe"}
    run = mending.test(run_conf={**conf, "incarnation": incarnation(), **more})
    (ti,) = run.get_task_instances()
    with create_session() as session:
        wanted = session.query(XComModel).filter_by(dag_id=mending.dag_id, run_id=run.run_id, key="return_value")
        said = [one.value for one in wanted]
    return [str(ti.state), said[0] if said else None]
'''
)


def write_both(home: AirflowHome) -> None:
    write_words(home)
    home.write_dag("mending", MENDING)


def test_a_failed_transaction_is_bisected_mended_and_replayed_by_runs_of_the_mending_dag(
    airflow_home: AirflowHome,
) -> None:
    write_both(airflow_home)
    result = airflow_home.python(
        ORDERS
        + """
Path("fail-1").touch()
play(dag)
seen = {"txid": 1, "seen_status": "FAILED", "seen_attempt": records()[0][1]}
found = order("bisect", **seen)
failed = order("backfill", **seen)
after = records()
Path("fail-1").unlink()
moved = order("backfill", **seen)
unmoved = records() == after
seen["seen_attempt"] = after[0][1]
nothing = order("bisect", **seen)
done = order("backfill", **seen)
tell({"found": found, "failed": failed, "moved": moved, "unmoved": unmoved, "nothing": nothing, "done": done,
      "records": records()})
"""
    )
    state, said = result["found"]
    assert state == "success"
    assert "row" in said[0]
    assert any("told to fail" in line for line in said)
    assert result["failed"][0] == "failed"
    assert result["moved"][0] == "failed"
    assert result["unmoved"]
    assert "transaction 1 has moved" in airflow_home.output
    assert result["nothing"] == ["success", ["transaction 1 does not fail: nothing to find"]]
    assert result["done"] == ["success", ["committed: 1"]]
    assert result["records"][0][0] == Status.COMMITTED


def test_without_rows_in_errors_a_bisect_returns_the_place_alone_and_logs_the_rows(airflow_home: AirflowHome) -> None:
    write_both(airflow_home)
    result = airflow_home.python(
        ORDERS
        + """
import os
Path("fail-1").touch()
play(dag)
os.environ["AIRFLOW__TRIDENT__ROWS_IN_ERRORS"] = "False"
tell({"found": order("bisect", txid=1, seen_status="FAILED", seen_attempt=records()[0][1])})
"""
    )
    state, said = result["found"]
    assert state == "success"
    assert len(said) == 2, said
    assert "from row" in said[0]
    assert said[1] == "the rows and their error are in the task's log alone ([trident] rows_in_errors is False)"
    assert "told to fail" in airflow_home.output


def test_a_range_of_what_was_skipped_is_replayed_lowest_first_and_has_its_asset_events(
    airflow_home: AirflowHome,
) -> None:
    write_both(airflow_home)
    file = airflow_home.dags / "words.py"
    file.write_text(file.read_text().replace('Topology("words")', 'Topology("words", asset="counts")'))
    result = airflow_home.python(
        ORDERS
        + """
from airflow_trident.protocol.records import Claim
from tests.fixtures import single
play(dag)
coordinators = {name: spout.coordinator() for name, spout in topology.spouts.items()}
with ledger() as one:
    for number in (2, 3):
        metadata = lambda txid, position: {name: found for name, spout in coordinators.items()
            if (found := spout.initialize_transaction(txid, position.get(name))) is not None}
        single.begin(one, Claim(key=str(number), dag_id="words", run_id=f"run-{number}"), metadata)
        one.skip(number, "late")
done = order("backfill", first=2, last=3)
nothing = order("backfill", first=2, last=3)
from airflow.models.asset import AssetEvent
with create_session() as session:
    events = [[one.source_task_id, one.extra["txid"]] for one in session.query(AssetEvent).order_by(AssetEvent.id)]
tell({"done": done, "nothing": nothing, "held": held() == HELD, "events": events})
"""
    )
    assert result["done"] == ["success", ["committed: 2, 3"]]
    assert result["nothing"] == ["success", ["committed: none"]]
    assert result["held"]
    assert [txid for _, txid in result["events"]] == [1, 2, 3]
    assert result["events"][0][0] == "words.commit"
    assert len({task for task, _ in result["events"][1:]}) == 1


DAYS = """
from airflow.sdk import DAG
from airflow_trident import FileSpout, Partitions, SqliteState, Sum, Topology, trident_transaction

topology = Topology("words", partitions=Partitions("day", begin="2020-02-01"))
orders = topology.new_stream(
    "orders", FileSpout("FOLDER/day={partition}/*.json", format="json", fields="shop string, cents long")
)
orders.group_by("day, shop").persistent_aggregate(SqliteState("FOLDER/words.db"), "cents", Sum(), "cents")
with DAG("words", schedule=None) as dag:
    trident_transaction(topology, engine="local", partition="{{ params.day }}", params={"day": "2020-02-01"})
again = ready = None
"""


def test_partitions_are_done_again_and_missing_ones_for_the_first_time_and_a_person_may_take_that_data_are_gone(
    airflow_home: AirflowHome,
) -> None:
    write_both(airflow_home)
    airflow_home.write_dag("words", DAYS.replace("FOLDER", str(airflow_home.folder)))
    result = airflow_home.python(
        ORDERS
        + """
def deliver(day, cents):
    path = Path(f"day=2020-02-0{day}", "a.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"shop": "mill", "cents": %d}' % cents)
def sums():
    (spec,) = topology.states.values()
    with spec.factory.make_state(spec) as state:
        return sorted([str(day), cents] for (day, _), (cents,) in state.items())
for day in (1, 2, 3):
    deliver(day, day)
first = play(dag)
missing = order("backfill", partition="2020-02-01", to="2020-02-03", choice="missing")
every = [sums()]
deliver(1, 10)
again = order("backfill", partition="2020-02-01", to="2020-02-02")
every.append(sums())
deliver(3, 30)
changed = order("backfill", partition="2020-02-01", to="2020-02-03", choice="changed")
every.append(sums())
Path("day=2020-02-02", "a.json").unlink()
refused = order("backfill", partition="2020-02-02")
taken = order("backfill", partition="2020-02-02", gone="take", empty="take")
every.append(sums())
with ledger() as one:
    reasons = [text for tx in one.transactions() for text in tx.accepted]
tell({"first": first, "orders": [missing, again, changed, taken], "refused": refused[0], "every": every,
      "reasons": sorted(set(reasons))})
"""
    )
    assert set(result["first"].values()) == {"success"}
    assert result["orders"] == [["success", [f"committed: {txids}"]] for txids in ("2, 3", "4, 5", "6", "7")]
    assert result["refused"] == "failed"
    first, second, third = ([f"2020-02-0{day}", day] for day in (1, 2, 3))
    assert result["every"] == [
        [first, second, third],
        [["2020-02-01", 10], second, third],
        [["2020-02-01", 10], second, ["2020-02-03", 30]],
        [["2020-02-01", 10], ["2020-02-03", 30]],
    ]
    assert result["reasons"] == ["because (backfill by uwe on the page)"]


def test_a_changed_definition_is_accepted(airflow_home: AirflowHome) -> None:
    write_both(airflow_home)
    airflow_home.python(PROGRAM + "tell(play(dag))")
    file = airflow_home.dags / "words.py"
    file.write_text(file.read_text().replace('Count(), "count"', 'Count(), "count2"'))
    result = airflow_home.python(
        ORDERS
        + """
before = play(dag)
first = order("accept")
again = order("accept")
tell({"before": before, "first": first, "again": again, "after": play(dag)})
"""
    )
    assert result["before"]["coordinate"] == "failed"
    state, said = result["first"]
    assert state == "success"
    assert said[0] == "topology words: accepted"
    assert any("count2" in line for line in said)
    assert result["again"] == [
        "success",
        ["topology words: the definition is the one in the ledger; nothing to accept"],
    ]
    assert result["after"]["commit"] == "success"


def test_orders_that_cannot_be_meant_fail_and_say_why_and_nothing_is_changed(airflow_home: AirflowHome) -> None:
    write_both(airflow_home)
    wrong = {
        "is no order to mend a topology": [{"action": "explode"}, {"seen_status": "GONE"}, {"more": 1}],
        "skip needs no run of a DAG": [{"action": "skip", "txid": 1}],
        "bisect is about one transaction": [{"action": "bisect"}],
        "lacks topology, dag_id or reason": [{"reason": ""}],
        "'missing_dag'": [{"dag_id": "missing_dag"}],
        "there is no topology 'nope' in DAG 'words'": [{"topology": "nope"}],
        "another-life": [{"incarnation": "another-life"}],
    }
    result = airflow_home.python(
        ORDERS
        + f"""
play(dag)
before = records()
states = [order(**{{"action": "backfill", **one}})[0] for said, all in {wrong!r}.items() for one in all]
tell({{"states": states, "unmoved": records() == before}})
"""
    )
    assert set(result["states"]) == {"failed"}
    assert result["unmoved"]
    assert [said for said in wrong if said not in airflow_home.output] == []


def test_the_page_shows_what_a_run_returned_that_airflow_keeps_in_an_object_storage(airflow_home: AirflowHome) -> None:
    """An object that cannot be read costs its own lines alone."""
    write_both(airflow_home)
    stored = airflow_home.folder / "xcoms"
    result = airflow_home.python(
        ORDERS
        + """
from airflow_trident.plugin import airflow_runs
from airflow_trident.plugin.rows import Sight

def shown():
    return [one["said"] for one in airflow_runs.latest("words", Sight(frozenset({"words"}), True))]

play(dag)
done = [order("backfill", first=1, last=1), order("bisect", txid=1)]
both = shown()
with create_session() as session:
    runs = session.query(XComModel).filter_by(dag_id=mending.dag_id, key="return_value").order_by(XComModel.dag_run_id)
    first = runs.first()
    Path(first.value.removeprefix("file://")).unlink()
one = shown()
tell({"done": done, "both": both, "one": one})
""",
        AIRFLOW__CORE__XCOM_BACKEND="airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH=f"file://{stored}",
        AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD="0",
    )
    assert [state for state, _ in result["done"]] == ["success", "success"]
    assert all(value.startswith(f"file://{stored}/") for _, value in result["done"])
    assert result["both"] == [["transaction 1 does not fail: nothing to find"], ["committed: none"]]
    assert result["one"] == [result["both"][0], []]


def test_the_runs_of_a_topology_are_found_behind_any_number_of_others(airflow_home: AirflowHome) -> None:
    result = airflow_home.python("""
from airflow.models.dagrun import DagRun
from airflow.utils import timezone
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType
from airflow_trident.plugin import airflow_runs
from airflow_trident.plugin.rows import Sight

def run(number, conf):
    return DagRun(dag_id=airflow_runs.MENDING_DAG, run_id=f"run-{number}", run_type=DagRunType.MANUAL, conf=conf,
        state="success", run_after=timezone.utcnow())

with create_session() as session:
    topologies = ["words", *["others"] * 60]
    session.add_all([run(number, {"topology": name}) for number, name in enumerate(topologies)] + [run(61, None)])
tell([[one["run_id"] for one in airflow_runs.latest(name, Sight(frozenset(), True))] for name in ("words", "others")])
""")
    assert result == [["run-0"], [f"run-{number}" for number in range(60, 55, -1)]]
