"""``airflow trident``: the ledger, replays, lifecycle."""

from __future__ import annotations

import json
import re
import sys

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.answers import NothingNew
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.znodes import Delete, Set
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.decide import Paused
from airflow_trident.protocol.records import Claim, Command, Status
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures import single
from tests.fixtures.airflow import PROJECT, airflow_home
from tests.fixtures.cli import COUNTS, DAG_FILE, Site, site

__all__ = ["airflow_home", "site"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]


# ---- ledger ----------------------------------------------------------------------------------------------------


def test_a_new_site_has_no_topologies_and_an_unknown_one_is_one_line_that_names_the_cure(site: Site) -> None:
    everything, as_json, unknown = site.tridents("ledger list", "ledger list -o json", "ledger list wrods")
    place = f"ZooKeeper at {site.home.hosts} below {site.home.root}"
    assert (everything.code, everything.out) == (0, f"no topology has a ledger in {place}\n")
    assert as_json.json() == []
    assert unknown.code == 1
    assert "no ledger of a topology 'wrods'" in unknown.error
    assert "Known topologies: none" in unknown.error
    assert place in unknown.error
    assert "[trident] root" in unknown.error


def test_a_file_name_that_is_not_utf_8_hides_no_ledger_and_turns_no_terminal(site: Site) -> None:
    odd = {"files": [["in/\udcff\x1b[31m.txt", 3, 1, 0]]}
    with site.ledger() as ledger:
        ledger.register(site.topology.definition())
        single.begin(ledger, Claim(key="1"), lambda _txid, _position: {"lines": odd}, max_pending=1)
        ledger.skip(1, "\udcff")
    for arguments in (("ledger", "list", "words", "-o", "yaml"), ("ledger", "show", "words", "1")):
        shown = site.trident(*arguments)
        assert (shown.code, shown.err) == (0, "")
        assert "\\udcff" in shown.out
        assert "\x1b" not in shown.out


def test_the_ledger_is_shown_as_it_is_in_tables_and_as_json(site: Site) -> None:
    site.run_all()
    every, as_json, as_table, *checked = site.tridents(
        "ledger list -o json",
        "ledger list words -o json",
        "ledger list words",
        "ledger list --check -o json",
        "ledger list words --check",
    )
    assert [one.code for one in (every, as_json, as_table)] == [0, 0, 0]
    assert [one.code for one in checked] == [1, 1], "transaction 2 is FAILED, and 3 waits for it"
    assert checked[0].out == every.out
    (row,) = every.json()
    assert row.pop("coordinated").startswith("20")
    assert row.pop("problem").startswith("transaction 2 is FAILED, and nothing above it may commit before it: UserCode")
    assert row == (
        {
            "topology": "words",
            "command": "run",
            "next": 4,
            "committed": 1,
            "pending": 2,
            "failed": "2",
            "replayed": None,
            "skipped": None,
            "lost": None,
            "coordinator": "begun",
            "lag": None,
        }
    )
    header = as_table.out.splitlines()[0]
    assert "error" in header
    assert "invalidated" not in header
    rows = as_json.json()
    assert [(row["txid"], row["status"], row["attempt"]) for row in rows] == [
        (1, "COMMITTED", 0),
        (2, "FAILED", 0),
        (3, "PROCESSED", 0),
    ]
    assert [row["rows_read"] for row in rows] == [2, None, 2]
    assert "this line is bad" in rows[1]["error"]
    assert [line.split("|")[1].strip() for line in as_table.out.splitlines() if line[:1].isdigit()] == [
        "COMMITTED",
        "FAILED",
        "PROCESSED",
    ]


def test_a_damaged_record_is_named_and_the_other_topologies_are_shown_all_the_same(site: Site) -> None:
    site.run_all()
    with open_ledger(ZooKeeperSettings(hosts=site.home.hosts), "damaged", root=site.home.root) as ledger:
        ledger.register(site.topology.definition())
        path = f"{site.home.root}/v1/damaged"
        node = ledger.znodes.read([path]).nodes[path]
        assert node is not None
        ledger.znodes.multi([Set(path, b"{not json", node.version)])
    every, one, healthy = site.tridents("ledger list -o json", "ledger list damaged", "ledger list words")
    assert every.code == 1
    assert [row["topology"] for row in every.json()] == ["damaged", "words"]
    assert path in every.json()[0]["problem"]
    assert (one.code, healthy.code) == (1, 0)
    assert path in one.error


def test_show_says_what_a_transaction_waits_for(site: Site) -> None:
    site.run_all()
    text, as_json, never, past = site.tridents(
        "ledger show words 3", "ledger show words 2 -o json", "ledger show words 9", "ledger show words 2"
    )
    assert text.code == 0
    assert "transaction 2 is FAILED, and nothing above it may commit before it" in text.out
    record = as_json.json()
    assert (record["topology"], record["txid"], record["status"]) == ("words", 2, "FAILED")
    last = record["attempts"][-1]
    assert last["attempt"] == record["attempt"]
    assert last["ended_ms"] >= last["begun_ms"] > 0
    (line,) = [line for line in past.out.splitlines() if line.startswith(f"attempts.{record['attempt']} ")]
    assert last["error"].splitlines()[0] in line
    assert never.code == 1
    assert "never began transaction 9; the next one is 4" in never.error


def test_the_verdicts_of_rules_are_shown_by_transaction(site: Site) -> None:
    verdict = {"value": 3, "rows": 7, "verdict": "failed", "rule": "0a1b2c3d", "limit": "== 0"}
    with site.ledger() as ledger:
        ledger.register(site.topology.definition())
        for number in (1, 2):
            single.begin(ledger, Claim(key=str(number)), lambda _txid, _position: {"lines": {}}, max_pending=2)
        ledger.fail(2, single.attempt(ledger, 2, owner="a test").attempt, "in vain", checks={"positive": verdict})
    as_json, as_table, none, unknown = site.tridents(
        "checks words --txid 2 -o json", "checks words", "checks words --txid 1", "checks wrods"
    )
    shown = {"txid": 2, "status": "FAILED", "rule": "positive", "verdict": "failed", "value": 3, "limit": "== 0"}
    assert as_json.json() == [{**shown, "rows": 7}]
    assert "positive" in as_table.out
    assert none.out == "transaction 1 of topology words: no rule was judged\n"
    assert (unknown.code, "no ledger of a topology 'wrods'" in unknown.error) == (1, True)


def test_export_writes_the_whole_ledger_to_a_file_or_to_standard_output(site: Site) -> None:
    site.run_all()
    with site.ledger() as ledger:
        expected = ledger.export()
    shown, written, nowhere = site.tridents(
        "ledger export words",
        "ledger export words --output words.json",
        "ledger export words --output words.json/below_a_file.json",
    )
    assert shown.json() == expected
    assert written.code == 0
    assert json.loads((site.home.folder / "words.json").read_text()) == expected
    assert nowhere.code == 1
    assert "cannot be written" in nowhere.error
    over, unreadable = site.tridents("ledger import words words.json", "ledger import words nothing.json")
    assert (over.code, unreadable.code) == (1, 1)
    assert "importing would lose it" in over.error
    assert "cannot be read" in unreadable.error
    site.home.options["AIRFLOW__TRIDENT__ROOT"] = f"{site.home.root}/elsewhere"
    imported, again = site.tridents("ledger import words words.json", "ledger export words")
    assert imported.code == 0, imported.err
    assert imported.out == f"topology words: imported; the next transaction is {expected['next_txid']}\n"
    assert again.json() == expected


def test_a_changed_definition_is_accepted_only_by_a_person_who_is_shown_the_change(site: Site) -> None:
    with site.ledger() as ledger:
        ledger.register(site.module.build("words", state="former_name").definition())
    accepted, again = site.tridents(*["ledger accept words --dag words_dag"] * 2)
    assert accepted.code == 0
    assert "state former_name: " in accepted.out
    assert "-> absent" in accepted.out
    with site.ledger() as ledger:
        assert ledger.topology().definition == site.topology.definition()
    assert "nothing to accept" in again.out


# ---- replaying -------------------------------------------------------------------------------------------------


def test_backfill_of_the_failed_transaction_commits_it_and_those_that_waited_once_each(site: Site) -> None:
    site.run_all()
    failing, found = site.tridents("backfill words --failed --engine local", "bisect words 2")
    assert failing.code == 1
    assert "transaction 2: failed" in failing.out
    assert "this line is bad" in failing.out
    assert found.code == 0, found.err
    assert "stream lines: 1 row from row 0 of the batch" in found.out
    assert "('a bad line',)" in found.out
    assert site.statuses() == [Status.COMMITTED, Status.FAILED, Status.PROCESSED]
    site.mend()
    mended, again = site.tridents(
        "backfill words --failed --engine local", "backfill words --from 1 --to 3 --engine local --dag words_dag"
    )
    assert mended.code == 0, mended.err
    assert "transaction 2: committed, and with it [3]" in mended.out
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS
    assert again.code == 0
    assert again.out.count("already committed") == 3
    assert site.counts() == COUNTS


def test_a_skipped_transaction_lets_others_pass_and_is_backfilled_late_exactly_once(site: Site) -> None:
    site.run_all()
    site.mend()
    skipped, listed, nothing = site.tridents(
        "skip words 2 --reason 'it was withdrawn'",
        "ledger list words -o json",
        "take-back words 3 --dag-file dags/words_dag.py",
    )
    assert (skipped.code, nothing.code) == (0, 1), nothing.err
    assert "no commit of it has begun" in nothing.error
    with site.ledger() as ledger:
        single.gate(ledger, 3, owner="somebody who was killed")
    taken, later = site.tridents(
        "take-back words 3 --reason 'it cannot be committed' --dag-file dags/words_dag.py",
        "backfill words --txid 3 --engine local --dag-file dags/words_dag.py",
    )
    assert (taken.code, later.code) == (0, 0), taken.err + later.err
    assert "transaction 3 is FAILED, and no state holds it" in taken.out
    assert listed.json()[1]["error"].startswith("it was withdrawn (skipped by ")
    assert site.statuses() == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED]
    late = site.executable("backfill", "words", "--txid", "2", "--engine", "local", "--dag-file", "dags/words_dag.py")
    assert late.code == 0, late.err
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS


def test_a_mended_source_is_accepted_with_a_reason_only_and_refused_where_nothing_changed(site: Site) -> None:
    site.run_all()
    dag_file = "--dag-file dags/words_dag.py"
    without, unchanged, committed = site.tridents(
        f"accept-source words 2 {dag_file}",
        f"accept-source words 2 --reason mended {dag_file}",
        f"accept-source words 1 --reason mended {dag_file}",
    )
    assert (without.code, unchanged.code, committed.code) == (2, 1, 1)
    assert "--reason" in without.err
    assert "the source of transaction 2 is as it was recorded" in unchanged.error
    assert "it is COMMITTED: the states have its batch" in committed.error


def test_a_dry_replay_compares_with_what_was_staged_and_changes_nothing(site: Site) -> None:
    site.run_all()
    equal = site.trident("replay", "words", "--txid", "1", "--dry-run", "--engine", "local")
    assert equal.code == 0, equal.err
    assert "state counts: equal (2 rows were staged, 2 replayed)" in equal.out
    shaken = site.trident("replay", "words", "--txid", "1", "--dry-run", "--shake", "--engine", "local")
    assert "state counts: equal (2 rows were staged, 2 replayed)" in shaken.out
    before = site.counts()
    (site.home.folder / "changed").touch()
    different = site.trident("replay", "words", "--txid", "1", "--dry-run", "--engine", "local")
    assert different.code == 1
    assert "state counts: DIFFERENT (2 rows were staged, 3 replayed; 0 missing, 1 extra)" in different.out
    assert "+ ('extra', 2)" in different.out
    assert site.counts() == before
    assert site.statuses() == [Status.COMMITTED, Status.FAILED, Status.PROCESSED]


def test_a_topology_without_a_dag_is_an_error_that_lists_what_was_found(site: Site) -> None:
    site.home.write_dag("broken", "from airflow.sdk import DAG\nraise ValueError('this file is broken')\n")
    missing, no_dag = site.tridents("backfill other --failed", "backfill words --failed --dag nothing_dag")
    assert missing.code == 1
    assert "no topology 'other'" in missing.error
    assert "words (DAG words_dag)" in missing.error
    assert "this file is broken" in missing.error
    assert "there is no DAG 'nothing_dag'; found: words_dag" in no_dag.error


def test_two_different_topologies_of_one_name_are_refused_until_the_dag_is_named(site: Site) -> None:
    site.run_all()
    site.mend()
    rival = (
        DAG_FILE.replace("words_dag", "rival_dag")
        .replace("import topology", "import build")
        .replace("(topology", '(build("words", "x")')
    )
    site.home.write_dag("rival_dag", rival)
    refused, named = site.tridents(
        "backfill words --failed --engine local", "backfill words --failed --engine local --dag words_dag"
    )
    assert refused.code == 1
    assert "topology 'words' is one thing in DAG" in refused.error
    assert named.code == 0, named.err
    assert site.counts() == COUNTS


@pytest.mark.spark
def test_backfill_runs_on_spark_unless_told_otherwise(site: Site) -> None:
    site.run_all()
    site.mend()
    conf = ("--spark-conf", "spark.master=local[2]", "--spark-conf", "spark.sql.shuffle.partitions=2")
    mended = site.trident("backfill", "words", "--failed", *conf)
    assert mended.code == 0, mended.err
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS


# ---- a lost ledger ---------------------------------------------------------------------------------------------


def test_a_ledger_that_was_lost_is_repaired_by_the_commands_of_the_how_to(site: Site) -> None:
    site.run_all()
    site.mend()
    how_to = (PROJECT / "docs" / "how-to" / "repair-a-ledger.md").read_text(encoding="utf-8").replace("fruit", "words")
    wipe = re.findall(r"^ +python -c '(.*)'$", how_to, re.MULTILINE)[0]
    wipe = wipe.replace("127.0.0.1:2181", site.home.hosts).replace("/airflow-trident", site.home.root)
    seen, *repairs = re.findall(r"^ +airflow trident (repair words.*)$", how_to, re.MULTILINE)
    assert (seen, *repairs[:2]) == (
        "repair words --dry-run",
        "repair words",
        'repair words --take-over "the ledger was deleted"',
    )
    site.home.run([sys.executable, "-c", wipe])

    planned, nothing, refused, done, again = site.tridents(seen, "ledger list", *repairs[:2], repairs[1])
    assert (planned.code, nothing.code) == (0, 0), planned.err
    assert nothing.out.startswith("no topology has a ledger in ZooKeeper at ")
    assert (refused.code, "the ledger that is there never was that one" in refused.err) == (1, True), refused
    assert done.code == 0, done.err
    assert again.code == 1
    assert site.statuses() == [Status.COMMITTED]
    with site.ledger() as ledger, LocalEngine() as engine:
        assert (ledger.view(0).pointer.committed, ledger.view(0).next_txid) == (1, 2)
        runner = LocalRunner(ledger=ledger, topology=site.topology, engine=engine, staging_root=site.staging)
        assert runner.run() == [2, 3]
    assert site.counts() == COUNTS


# ---- lifecycle -------------------------------------------------------------------------------------------------


def test_lifecycle_commands_are_an_epoch_in_the_ledger_that_coordinators_obey(site: Site) -> None:
    site.run_all()
    for lines, epoch, command, stops in (
        (["pause words"], 1, Command.PAUSE, True),
        (["resume words", "shutdown words"], 3, Command.SHUTDOWN, True),
        (["run words"], 4, Command.RUN, False),
    ):
        *_, result = site.tridents(*lines)
        assert (result.code, "begins no new transactions" in result.out) == (0, stops), result
        with site.ledger() as ledger:
            assert (ledger.topology().epoch, ledger.topology().command) == (epoch, command)
            begun = single.coordinate(ledger, site.topology, Claim(key=f"after {command}"), max_pending=5)
        assert begun == (Paused(command) if stops else NothingNew())


def test_a_drain_of_a_paused_topology_says_how_it_goes_on(site: Site) -> None:
    *_, gone = site.tridents(
        "drain words --engine local --max-transactions 1",
        "pause words",
        "drain words --engine local",
    )
    assert gone.code == 0, gone.err
    assert gone.out.splitlines()[-1] == (
        "topology words: its command is pause, and no new transaction begins. `airflow trident resume words` ends that."
    )
    assert "nothing new" not in gone.out


def test_a_state_that_was_deleted_is_rebuilt_and_what_is_pruned_is_given_up_with_a_reason_only(site: Site) -> None:
    site.run_all()
    site.mend()
    database = site.home.folder / "words.db"
    backfilled = site.trident("backfill", "words", "--failed", "--engine", "local")
    assert backfilled.code == 0, backfilled.err
    for name in site.home.folder.glob(f"{database.name}*"):
        name.unlink()
    refused, planned, rebuilt, whole = site.tridents(
        "drain words --engine local",
        "rebuild words --engine local --dry-run",
        "rebuild words --engine local --state counts",
        "rebuild words --engine local",
    )
    assert refused.code == 1
    assert "lacks 1 to 3" in refused.err
    assert "dry run: nothing was changed" in planned.out
    assert "state counts: 3 transactions were replayed (1 to 3)" in rebuilt.out, rebuilt.err
    assert "the states hold all that the ledger calls COMMITTED" in whole.out
    assert site.counts() == COUNTS
    for name in site.home.folder.glob(f"{database.name}*"):
        name.unlink()
    with site.ledger() as ledger:
        path = LedgerPaths(f"{site.home.root}/v1/words", ledger.topology().incarnation).tx(1)
        ledger.znodes.multi([Delete(path)])
    lost, wordless, given_up, listed, doctor = site.tridents(
        "rebuild words --engine local",
        "rebuild words --engine local --accept-loss",
        "rebuild words --engine local --accept-loss --reason 'no copy'",
        "ledger list -o json",
        "doctor",
    )
    assert (lost.code, wordless.code, given_up.code) == (1, 2, 0), given_up.err
    assert "state 'counts' lacks 1" in lost.error
    assert "with a reason" in wordless.err
    assert listed.json()[0]["lost"] == "counts: 1"
    assert "state counts goes on without 1 (no copy, " in doctor.out


def test_what_is_skipped_is_closed_for_good(site: Site) -> None:
    site.run_all()
    skipped, early, unsaid, committed, closed, again, shown = site.tridents(
        "skip words 2",
        "close words --all",
        "close words --txid 2",
        "backfill words --txid 3 --engine local",
        "close words --from 1 --to 3 --reason 'it was withdrawn'",
        "backfill words --txid 2 --engine local",
        "ledger show words 2 -o json",
    )
    assert (skipped.code, early.code, unsaid.code, committed.code) == (0, 2, 2, 0), committed.err
    assert "topology words: 1 transactions are CLOSED (2)" in closed.out, closed.err
    assert again.code == 1
    assert "closed for good" in again.out + again.err
    assert shown.json()["status"] == "CLOSED"
