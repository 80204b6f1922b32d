"""Each command that a text of this package advises is run in the situation in which a person reads it, and it helps.

A situation is brought about for real, on the local engine and a ledger in memory; the command comes out of the text
that was shown there, and Airflow's parser and this package's handlers run it. Then new data come, and everything must
be committed and counted once.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_trident.cli.commands import doctor as doctor_module
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TridentError
from airflow_trident.ledger import open as ledgers
from airflow_trident.ledger.backup import UNFINISHED
from airflow_trident.ledger.layout import DEFAULT_ROOT, LedgerPaths, topology_path
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.workers import Worker
from airflow_trident.ledger.znodes import Set
from airflow_trident.ledger.zookeeper import client
from airflow_trident.operators.base import backfill_run_refused
from airflow_trident.protocol.decide import Unknown
from airflow_trident.protocol.diagnosis import waiting
from airflow_trident.protocol.records import Claim, Owner, Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.runtime.waiting import blocked
from airflow_trident.sensors.turn import TridentTurnSensor
from airflow_trident.storm.workers.deployments import Deployments
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.topology.topology import Topology
from airflow_trident.triggers.transaction import TridentTurnTrigger
from tests.fixtures.runtime import copy_of
from tests.unit.test_documented_commands import Advice, advices, parse

pytestmark = pytest.mark.airflow

DAG_FILE = '''
from pathlib import Path

from airflow.sdk import DAG

from airflow_trident import CombinerAggregator, Count, FileSpout, SqliteState, Topology, trident_transaction

FOLDER = Path(__file__).parent.parent


def has(flag):
    return (FOLDER / flag).exists()


def split(line):
    if "bad" in line and not has("mended"):
        raise ValueError("this line is bad")
    return line.split()


class Total(CombinerAggregator):
    """It is combined with what the state has, in the commit."""

    def init(self, *values):
        return 1

    def combine(self, one, other):
        if has("stuck") and max(one, other) > 2:
            raise ValueError("the state refuses")
        return one + other

    def zero(self):
        return 0


topology = Topology("words")
words = topology.new_stream("lines", FileSpout(f"{FOLDER}/in/*.txt", format="text", max_files=1))
words = words.each("line", split, "word string")
if has("apart"):
    words = words.group_by("word").aggregate(Count(), "within").project("word")
words = words.group_by("word")
words.persistent_aggregate(SqliteState(f"{FOLDER}/first.db"), Total(), "total long", name="first")
words.persistent_aggregate(SqliteState(f"{FOLDER}/second.db"), Count(), "count", name="second")
if has("grown"):
    words.persistent_aggregate(SqliteState(f"{FOLDER}/third.db"), Count(), "third", name="third")

with DAG("words_dag"):
    trident_transaction(topology, engine="local")
'''


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return " ".join(f"{self.out} {self.err}".split())


@dataclass
class Desk:
    """A person at a terminal. Each file below `in` is a transaction; flags are files that the DAG file looks at."""

    folder: Path
    tree: MemoryTree = field(default_factory=MemoryTree)
    files: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    """State -> the transactions that it does without: they were before it, or their loss was accepted."""

    def write(self, line: str) -> Path:
        self.files += 1
        path = self.folder / "in" / f"{self.files:03}.txt"
        path.write_text(f"{line}\n")
        os.utime(path, (10**9 + self.files, 10**9 + self.files))
        return path

    def flag(self, name: str, on: bool = True) -> None:
        path = self.folder / name
        path.touch() if on else path.unlink()

    def run(self, command: str) -> Answer:
        """A command as a person types it, with or without ``airflow trident``."""
        words = shlex.split(command.removeprefix("airflow trident "))
        args, out, err = parse(tuple(words)), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            args.func(args)
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())

    def does(self, *commands: str) -> str:
        """What the last of these commands says, all of which succeed."""
        answers = [self.run(command) for command in commands]
        assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * len(answers)
        return answers[-1].text

    # ---- what tasks do -----------------------------------------------------------------------------------------

    @property
    def ledger(self) -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "words")

    @property
    def topology(self) -> Topology:
        return topology_named("words")

    @property
    def staging(self) -> str:
        return str(self.folder / "staging")

    def begin(self, *lines: str) -> None:
        for line in lines:
            self.write(line)
            coordinate(self.ledger, self.topology, [Claim(key=f"run {self.files}")], max_pending=9)

    def process(self, *txids: int, last_try: bool = True, raises: bool = False) -> None:
        attempts = Attempts(owner="gone", last_try=last_try)
        with LocalEngine() as engine:
            for txid in txids:
                with contextlib.nullcontext() if raises else contextlib.suppress(TridentError):
                    process(self.ledger, self.topology, txid, engine, self.staging, attempts)

    def commit(self, txid: int, **options: Any) -> Any:
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=Attempts(owner="gone"),
            engine=LocalEngine,
            **options,
        )
        return committer.commit(txid)

    def doctor(self) -> str:
        deployed = Deployments(MemoryZNodes(self.tree)).read()
        return " ".join(finding.text for finding in doctor_module._topology("words", self.ledger, deployed))

    def another(self, txid: int) -> tuple[ZNodeLedger, Owner]:
        """Another program, which works on a transaction now."""
        session, owner = self.ledger, Owner(program="another", host=socket.gethostname(), pid=os.getpid())
        return session, replace(owner, worker=session.enlist(Worker.of(owner, txid)))

    def apply_to(self, name: str, txid: int) -> None:
        """A committer brings a transaction into one state and is killed."""

        def killed(line: str) -> None:
            if f"into state {name}" in line:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.commit(txid, progress=killed)

    # ---- afterwards --------------------------------------------------------------------------------------------

    def status(self, txid: int) -> Status:
        record = self.ledger.view(txid).tx
        assert record is not None
        return record.status

    def contents(self, name: str) -> dict[str, int]:
        spec = self.topology.states[name]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}

    def require_free(self) -> None:
        """New data go through, and what is COMMITTED is counted once in each state."""
        self.write("end")
        self.does("drain words", "ledger list words --check")
        left_out = {record.txid for record in self.ledger.transactions() if record.status is not Status.COMMITTED}
        assert all(self.status(txid).lets_others_pass for txid in left_out)
        paths = sorted((self.folder / "in").iterdir())
        texts = ["" if number in left_out else path.read_text() for number, path in enumerate(paths, 1)]
        for name in self.topology.states:
            taken = texts[self.lacking.get(name, 0) :]
            assert self.contents(name) == Counter(word for text in taken for word in text.split()), name


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    for name in ("in", "dags"):
        (tmp_path / name).mkdir()
    (tmp_path / "dags" / "words.py").write_text(DAG_FILE)
    bundle = {
        "name": "dags-folder",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    settings = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__TRIDENT__STAGING_DIR": desk.staging,
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps({"conn_type": "zookeeper", "host": "memory"}),
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for module in (ledgers, client):
        monkeypatch.setattr(module, "ZooKeeperZNodes", lambda _settings: MemoryZNodes(desk.tree))
    levels = {handler: handler.level for handler in logging.getLogger().handlers}
    yield desk
    for handler, level in levels.items():
        handler.setLevel(level)


# ---- situations --------------------------------------------------------------------------------------------------

Bring = Callable[[Desk], str]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """`bring`: brings it about and returns the text that is shown there; `file`, `command`: of the advice in it.

    `rest`: the arguments that the text leaves to the person; `then`: what the text tells to do afterwards; `shows`:
    what a command that only shows something must say. All others must let everything go on."""

    bring: Bring
    file: str
    command: str
    rest: str
    then: tuple[str, ...]
    shows: str

    def __str__(self) -> str:
        return f"{self.bring.__name__}: {self.command}".replace("{...}", "_")


SITUATIONS: list[Situation] = []


def shown_by(file: str, *commands: str, rest: str = "", then: tuple[str, ...] = (), shows: str = "") -> Any:
    def add(bring: Bring) -> Bring:
        SITUATIONS.extend(
            Situation(bring=bring, file=file, command=command, rest=rest, then=then, shows=shows)
            for command in commands
        )
        return bring

    return add


DIAGNOSIS, REFUSALS, HANDLERS = "protocol/diagnosis.py", "ledger/refusals.py", "cli/commands/transactions.py"
BACKFILL, SKIP, TAKE_BACK, LIST = (
    "backfill {...} --txid {...}",
    "skip {...} {...}",
    "take-back {...} {...}",
    "ledger list {...}",
)
AGAIN = ("backfill words --txid 2",)


@shown_by(DIAGNOSIS, BACKFILL, SKIP)
def failed(desk: Desk) -> str:
    desk.begin("a", "bad", "c")
    desk.process(1, 2, 3)
    text = desk.run("drain words").text
    desk.flag("mended")
    return text


@shown_by("operations/user_code.py", "accept-source", rest="words 2 --reason mended", then=AGAIN)
def a_bad_line(desk: Desk) -> str:
    failed(desk)
    desk.flag("mended", on=False)
    text = desk.run("backfill words --txid 2").text
    (desk.folder / "in" / "002.txt").write_text("good\n")
    return text


@shown_by("contracts/spout.py", "accept-source TOPOLOGY TXID --reason WHY", then=AGAIN)
def a_changed_file(desk: Desk) -> str:
    failed(desk)
    (desk.folder / "in" / "002.txt").write_text("good\n")
    return desk.run("backfill words --txid 2").text


@shown_by(HANDLERS, BACKFILL)
def an_accepted_file(desk: Desk) -> str:
    a_changed_file(desk)
    return desk.does("accept-source words 2 --reason mended")


@shown_by("protocol/decide.py", "backfill TOPOLOGY --txid {...}")
def an_accepted_file_that_is_shown(desk: Desk) -> str:
    an_accepted_file(desk)
    text = desk.does("ledger show words 2")
    told = desk.ledger.view(2).tx
    assert told is not None
    assert "accept-source" not in told.all_errors
    assert "accept-source" in text, "the attempt before it keeps its error"
    return text


@shown_by("protocol/decide.py", "backfill TOPOLOGY --txid TXID")
def nothing_to_accept(desk: Desk) -> str:
    failed(desk)
    return desk.run("accept-source words 2 --reason mended").text


@shown_by(DIAGNOSIS, BACKFILL)
def skipped_and_waited_for(desk: Desk) -> str:
    failed(desk)
    desk.does("skip words 2")
    return str(blocked("words", desk.commit(2).own))


@shown_by(HANDLERS, BACKFILL)
def skipped(desk: Desk) -> str:
    failed(desk)
    return desk.does("skip words 2")


@shown_by("runtime/phases.py", "ledger show {...} {...}", shows="nobody wants it")
def closed(desk: Desk) -> str:
    skipped(desk)
    desk.does("close words --txid 2 --reason 'nobody wants it'")
    with pytest.raises(TridentError) as refused:
        desk.process(2, raises=True)
    return str(refused.value)


@shown_by("cli/commands/doctor.py", 'close {...} --all --reason "..."')
def many_skipped(desk: Desk) -> str:
    skipped(desk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_module, "MANY_SKIPPED", 0)
        return desk.doctor()


@shown_by(DIAGNOSIS, "backfill {...} --failed")
def two_failed(desk: Desk) -> str:
    desk.begin("a", "bad", "bad")
    desk.process(1, 2, 3)
    desk.flag("mended")
    return desk.doctor()


@shown_by("operators/base.py", "backfill {...} --failed")
def a_backfill_run_of_airflow(desk: Desk) -> str:
    failed(desk)
    run: Any = {"dag_run": SimpleNamespace(run_id="backfill__1")}
    return str(backfill_run_refused("words", run))


@shown_by(DIAGNOSIS, "resume {...}")
def paused(desk: Desk) -> str:
    desk.write("a")
    desk.does("drain words", "pause words")
    return desk.does("drain words")


@shown_by(DIAGNOSIS, "ledger show {...} {...}", shows="PROCESSING")
@shown_by(DIAGNOSIS, BACKFILL, SKIP)
def left(desk: Desk) -> str:
    """Whoever processed transaction 2 was killed."""
    desk.begin("a", "bad", "c")
    desk.process(1, 2, 3, last_try=False)
    desk.flag("mended")
    verdict = desk.commit(3).own
    return str(waiting("words", 3, verdict.why, desk.ledger.view(2).tx))


@shown_by(DIAGNOSIS, "ledger show {...} {...}", shows="COMMITTING")
@shown_by(DIAGNOSIS, TAKE_BACK, then=AGAIN)
@shown_by(DIAGNOSIS, BACKFILL)
def a_commit_that_fails(desk: Desk) -> str:
    """No state has transaction 2, whose commit has begun."""
    stuck(desk)
    text = str(waiting("words", 3, "an earlier one is not committed", desk.ledger.view(2).tx))
    desk.flag("stuck", on=False)
    return text


def stuck(desk: Desk, *flags: str) -> None:
    """The first state refuses transaction 2 in the commit, so the second one is not asked."""
    desk.begin("a a a", "a", "c")
    desk.process(1)
    desk.commit(1)
    desk.flag("stuck")
    desk.process(2, 3)
    with pytest.raises(TridentError):
        desk.commit(2)
    assert desk.status(2) is Status.COMMITTING


@shown_by(DIAGNOSIS, BACKFILL)
@shown_by(DIAGNOSIS, TAKE_BACK, then=AGAIN)
def a_skip_of_a_commit(desk: Desk) -> str:
    stuck(desk)
    desk.flag("stuck", on=False)
    return desk.run("skip words 2").text


@shown_by(HANDLERS, BACKFILL, SKIP)
def taken_back(desk: Desk) -> str:
    a_skip_of_a_commit(desk)
    return desk.does("take-back words 2")


@shown_by("states/core/marker.py", BACKFILL)
def held_by_one(desk: Desk) -> str:
    """The first state has transaction 2, and whoever would have brought it into the second one was killed."""
    stuck(desk)
    desk.flag("stuck", on=False)
    desk.apply_to("first", 2)
    return desk.run("take-back words 2").text


@shown_by(DIAGNOSIS, BACKFILL)
@shown_by(DIAGNOSIS, TAKE_BACK, then=("backfill words --failed",))
def passed_over(desk: Desk) -> str:
    desk.begin("a", "b", "c")
    desk.process(1, 3)
    desk.does("skip words 2")
    desk.ledger.gate([1, 3], owner="gone")
    return desk.run("backfill words --txid 2").text


@shown_by(DIAGNOSIS, BACKFILL)
def a_state_that_left_in_a_commit(desk: Desk) -> str:
    desk.flag("grown")
    stuck(desk)
    desk.flag("stuck", on=False)
    desk.flag("grown", on=False)
    desk.does("ledger accept words")
    return desk.run("take-back words 2").text


@shown_by(REFUSALS, "ledger accept {...}", then=("take-back words 2", *AGAIN))
def a_state_that_came_back(desk: Desk) -> str:
    text = a_state_that_left_in_a_commit(desk)
    desk.flag("grown")
    return text


@shown_by("runtime/backfill.py", BACKFILL)
def at_work(desk: Desk) -> str:
    failed(desk)
    session, owner = desk.another(2)
    session.attempt([2], owner=owner)
    return desk.run("backfill words --failed").text


@shown_by("runtime/backfill.py", LIST, shows="COMMITTED")
def a_wrong_range(desk: Desk) -> str:
    paused(desk)
    return desk.run("backfill words --from 1 --to 9").text


@shown_by("runtime/phases.py", LIST, shows="COMMITTED")
def an_unknown_transaction(desk: Desk) -> str:
    paused(desk)
    with pytest.raises(TridentError) as refused:
        desk.process(9, raises=True)
    return str(refused.value)


@shown_by("cli/commands/ledger.py", LIST, shows="COMMITTED")
def an_unknown_transaction_to_show(desk: Desk) -> str:
    paused(desk)
    return desk.run("ledger show words 9").text


@shown_by("triggers/transaction.py", LIST, shows="COMMITTED")
def an_unknown_turn(desk: Desk) -> str:
    paused(desk)
    trigger: Any = SimpleNamespace(topology="words")
    return TridentTurnTrigger._story(trigger, 9, Unknown(9, 2))


@shown_by("operators/base.py", LIST, shows="PROCESSING")
def waited_too_long(desk: Desk) -> str:
    left(desk)
    began = SimpleNamespace(get_first_reschedule_date=lambda _context: datetime(2020, 1, 1, tzinfo=UTC))
    context: Any = {"ti": began}
    sensor: Any = SimpleNamespace(topology_name="words")
    with pytest.raises(AirflowSensorTimeout) as ended:
        TridentTurnSensor.look_again_later(sensor, context, "transaction 2", timedelta(hours=1))
    return str(ended.value)


@shown_by("protocol/records.py", "ledger list", shows="COMMITTED", rest="words")
def a_step_that_is_not_allowed(desk: Desk) -> str:
    paused(desk)
    return desk.run("skip words 1").text


@shown_by("runtime/drains/limits.py", "plan {...}", shows="groups of transactions: processed one by one")
def no_groups(desk: Desk) -> str:
    desk.flag("apart")
    return desk.run("drain words --group 3").text


# ---- definitions and ledgers -------------------------------------------------------------------------------------


@shown_by(REFUSALS, "ledger accept {...}")
def another_definition(desk: Desk) -> str:
    paused(desk)
    desk.does("resume words")
    desk.flag("grown")
    desk.lacking["third"] = 1
    return desk.run("drain words").text


def two(desk: Desk) -> MemoryTree:
    """Two transactions are COMMITTED. Returns a copy of the ledger from between them."""
    desk.write("a b")
    desk.does("drain words")
    copy = copy_of(desk.tree)
    desk.write("b c")
    desk.does("drain words")
    return copy


@shown_by("runtime/state_agreement.py", "repair {...}")
def a_ledger_of_the_past(desk: Desk) -> str:
    desk.tree = two(desk)
    return desk.run("drain words").text


@shown_by(REFUSALS, "backfill {...} --txid TXID")
@shown_by(REFUSALS, LIST, shows="COMMITTED")
def a_run_of_before_a_repair(desk: Desk) -> str:
    a_ledger_of_the_past(desk)
    desk.does("repair words")
    with pytest.raises(TridentError) as refused:
        coordinate(desk.ledger, desk.topology, [Claim(key="run 1", run_ms=1, cleared=True)])
    return str(refused.value)


@shown_by("ledger/backup.py", "repair {...}")
def an_import_over_a_ledger(desk: Desk) -> str:
    copy = two(desk)
    desk.does(f"ledger export words --output {desk.folder}/export.json")
    desk.tree = copy
    return desk.run(f"ledger import words {desk.folder}/export.json").text


@shown_by("cli/commands/ledger.py", "ledger export", rest="words --output {folder}/export.json")
def an_import_of_nothing(desk: Desk) -> str:
    two(desk)
    return desk.run("ledger import words nothing.json").text


@shown_by("ledger/backup.py", "ledger import", rest="words {folder}/export.json")
def an_import_that_was_cut_off(desk: Desk) -> str:
    two(desk)
    desk.does(f"ledger export words --output {desk.folder}/export.json")
    path = topology_path(DEFAULT_ROOT, "words")
    znodes = MemoryZNodes(desk.tree)
    znodes.multi([Set(path, UNFINISHED, znodes.read([path]).nodes[path].version)])
    return desk.run("drain words").text


@shown_by("contracts/state.py", 'repair {...} --take-over "the ledger was deleted"')
def a_ledger_that_was_deleted(desk: Desk) -> str:
    two(desk)
    desk.tree = MemoryTree()
    return desk.run("drain words").text


@shown_by("runtime/repair.py", 'repair {...} --take-over "the ledger was deleted"')
def a_repair_that_needs_a_word(desk: Desk) -> str:
    a_ledger_that_was_deleted(desk)
    return desk.run("repair words").text


@shown_by("runtime/repair.py", "backfill {...} --failed")
def a_transaction_in_one_state_alone(desk: Desk) -> str:
    held_by_one(desk)
    desk.tree = MemoryTree()
    return desk.does("repair words --take-over 'it was deleted'")


@shown_by("protocol/state_gaps.py", "rebuild {...} --state {...}")
def a_state_that_was_deleted(desk: Desk) -> str:
    two(desk)
    (desk.folder / "first.db").unlink()
    return desk.run("drain words").text


@shown_by("runtime/mending/rebuild.py", 'rebuild {...} --state {...} --accept-loss --reason "..."')
def a_state_that_cannot_be_replayed(desk: Desk) -> str:
    for number in range(1, 5):
        desk.begin("a")
        desk.process(number)
        desk.commit(number, retention=1)
    (desk.folder / "first.db").unlink()
    desk.lacking["first"] = 3
    return desk.run("rebuild words --state first").text


# ---- named workers -----------------------------------------------------------------------------------------------

STEPS, NAMED = "storm/workers/deployment.py", "storm/workers/worker.py"


@shown_by(STEPS, "undeploy {...}")
def deployed_on_nobody(desk: Desk) -> str:
    desk.does("drain words", "deploy words --workers w1")
    return desk.run("ledger list words").text


@shown_by("storm/commands/workers.py", "workers {...}", shows="w1")
def deployed(desk: Desk) -> str:
    return desk.does("deploy words --workers w1")


@shown_by(STEPS, "workers {...}", shows="w1")
def started_too_early(desk: Desk) -> str:
    deployed(desk)
    return desk.run("run words").text


@shown_by(STEPS, "deploy {...} --workers {...}", then=("undeploy words",))
def deployed_in_an_earlier_life(desk: Desk) -> str:
    deployed(desk)
    before = desk.ledger.topology().incarnation
    znodes, path = MemoryZNodes(desk.tree), LedgerPaths(topology_path(DEFAULT_ROOT, "words"), before).deployment
    node = znodes.read([path]).nodes[path]
    desk.tree = MemoryTree()
    desk.does("deploy words --workers w2")
    znodes = MemoryZNodes(desk.tree)
    znodes.multi([Set(path, node.data, znodes.read([path]).nodes[path].version)])
    return desk.run("ledger list words").text


@shown_by("storm/workers/deployment.py", "deploy", rest="words --workers w1", then=("undeploy words",))
def a_deployment_that_cannot_be_read(desk: Desk) -> str:
    deployed(desk)
    path = LedgerPaths(topology_path(DEFAULT_ROOT, "words"), desk.ledger.topology().incarnation).deployment
    znodes = MemoryZNodes(desk.tree)
    znodes.multi([Set(path, b"?", znodes.read([path]).nodes[path].version)])
    return desk.run("workers words").text


@shown_by(NAMED, "deploy {...} --workers {...}", then=("undeploy words",))
def a_worker_of_what_is_not_deployed(desk: Desk) -> str:
    desk.does("drain words")
    return desk.run("worker w1 --topology words").text


@shown_by(NAMED, "deploy {...} --workers {...}", then=("undeploy words",))
def a_worker_that_is_not_named(desk: Desk) -> str:
    deployed(desk)
    return desk.run("worker w2 --topology words").text


@shown_by(NAMED, "deploy TOPOLOGY --workers {...}", then=("undeploy words",))
def a_worker_of_nothing(desk: Desk) -> str:
    desk.does("drain words")
    return desk.run("worker w1").text


# ---- the test ----------------------------------------------------------------------------------------------------

SERVERS = "tests/integration/test_cli_site.py starts, stops and asks servers as typed"
WORKERS = "tests/integration/test_cli_workers.py starts workers as typed, and asks for them"
FORMER = "needs a state that left during a commit; tests/integration/test_take_back.py follows it"
GONE_OVER = "tests/integration/test_overtaken_commits.py does what the doctor says, in this order"
LISTS = "tests/integration/test_source_lists.py loses a list, puts it back and makes it anew"
PARTITIONS = "needs a bound topology; tests/integration/test_cli_partitions.py runs it"
GATES = "needs a rule that a batch does not keep; tests/unit/test_gates.py breaks one"
ELSEWHERE = {
    ("cli/added_connection.py", "airflow connections delete {...}"): SERVERS,
    ("storm/commands/workers.py", "airflow trident worker NAME"): WORKERS,
    ("cli/commands/zookeeper.py", "airflow trident zookeeper start"): SERVERS,
    ("cli/commands/zookeeper.py", "airflow trident zookeeper stop"): SERVERS,
    ("cli/commands/transactions.py", "airflow trident backfill {...} --partition {...}"): PARTITIONS,
    ("cli/console.py", "airflow trident backfill {...} --partition {...}"): PARTITIONS,
    ("cli/console.py", "airflow db migrate"): "a command of Airflow; tests/integration/test_cli_site.py shows the text",
    ("engine/spark/errors.py", "airflow trident ledger show TOPOLOGY TXID"): "needs a Spark; `left` shows its output",
    ("engine/spark/sessions/connect.py", "airflow trident connect-server start"): (
        "needs a Spark; tests/integration/test_spark_server.py starts it"
    ),
    ("hooks/zookeeper.py", "airflow trident zookeeper start --add-connection"): SERVERS,
    ("ledger/recovery.py", "airflow trident ledger accept"): (
        "the second step after a repair; `another_definition` runs it, tests/integration/test_repair.py shows the text"
    ),
    ("ledger/embedded/server.py", "airflow trident zookeeper start"): SERVERS,
    ("ledger/refusals.py", "airflow trident ledger accept {...}"): FORMER,
    ("ledger/zookeeper/client.py", "airflow trident zookeeper status"): SERVERS,
    ("operators/transaction.py", "airflow dags test {...}"): (
        "needs the tasks of a DAG; tests/integration/test_ten_minutes.py runs it"
    ),
    ("operators/transaction.py", "airflow tasks test"): "names what was done; it is no advice",
    ("storm/workers/deployment.py", "airflow trident worker {...}"): WORKERS,
    ("storm/workers/deployment.py", "airflow trident workers {...}"): WORKERS,
    ("runtime/downstream.py", "airflow trident plan {...}"): "a fault of this package, which nothing brings about",
    ("runtime/drains/drain.py", "airflow trident ledger list {...}"): (
        "needs another worker that begins a transaction in the middle of a drain; `an_unknown_transaction` runs it"
    ),
    ("runtime/drains/limits.py", "airflow trident skip"): (
        "refused while the DAG is built, with no transaction; `failed` and `left` run it"
    ),
    ("runtime/gates.py", "airflow trident accept-source"): GATES,
    ("runtime/gates.py", "airflow trident backfill"): GATES,
    ("runtime/staged_batches.py", "airflow trident take-back {...} {...}"): (
        "tests/integration/test_other_plans.py takes the commit back and goes on"
    ),
    ("spouts/files/bound_files.py", "airflow trident backfill TOPOLOGY --partition {...}"): PARTITIONS,
    ("spouts/files/read_list.py", "airflow trident ledger import"): LISTS,
    ("spouts/files/read_list.py", "airflow trident source mark-read TOPOLOGY STREAM"): LISTS,
    ("spouts/files/spout.py", "airflow trident source mark-read"): LISTS,
    ("states/core/marker.py", "airflow trident doctor"): GONE_OVER,
    ("states/core/marker.py", "airflow trident repair {...}"): (
        "since coordinators and committers look first, `a_ledger_of_the_past` is what a person reads"
    ),
    ("states/core/merge.py", "airflow trident ledger accept"): "needs another store; `another_definition` runs it",
    ("states/core/merge.py", "airflow trident take-back"): "needs another store; `a_commit_that_fails` runs it",
    ("states/delta/state.py", "airflow trident state fold {...} {...}"): (
        "needs a large Delta table; tests/integration/test_cli_upkeep.py folds one as typed"
    ),
    ("states/redis/map.py", "airflow trident rebuild"): ("needs a Redis; `a_state_that_was_deleted` runs it"),
    ("tasks/asset_events.py", "airflow db clean"): "names what was done; it is no advice",
    ("tasks/partition_runs.py", "airflow backfill create"): "a command of Airflow; tests/system/test_days.py runs it",
    ("tasks/partition_runs.py", 'airflow dags trigger {...} --conf \'{"{...}": {"partition": "{...}"}}\''): (
        "a command of Airflow; tests/integration/test_days_in_airflow.py runs the DAG with this conf"
    ),
    ("tasks/partition_runs.py", "airflow trident backfill {...} --partition {...}"): PARTITIONS,
    ("tasks/topology_search.py", "airflow dags list"): "a command of Airflow",
    ("triggers/transaction.py", "airflow connections add {...} --conn-type zookeeper --conn-host HOST:2181"): (
        "a command of Airflow; tests/integration/test_cli_site.py runs it"
    ),
}
"""Advice that no situation here shows -> why, or the test that runs it."""


def pattern_of(template: str) -> str:
    return "(?s:.*?)".join(re.escape(part) for part in template.split("{...}"))


def advice_in(text: str, file: str, command: str) -> Advice:
    """The text of this file that was shown."""
    candidates = [
        advice for advice in advices() if (advice.file, advice.command) == (file, f"airflow trident {command}")
    ]
    texts = [advice for advice in candidates if re.search(pattern_of(advice.text), text)]
    assert texts, f"{text!r} is none of {candidates}"
    return texts[0]


def typed(text: str, advice: Advice, rest: str) -> str:
    """The command as a person types it who reads this text."""
    command = '[^`"]*?'.join(re.escape(part) for part in advice.command.split("{...}"))
    match = re.search(f'`({command})`|"({command})"', text)
    assert match, text
    command = match[1] or match[2]
    for name, value in (("TOPOLOGY", "words"), ("TXID", "2"), ("WHY", "mended")):
        command = command.replace(name, value)
    return f"{command} {rest}"


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_what_a_text_advises_helps_where_it_is_shown(desk: Desk, situation: Situation) -> None:
    text = situation.bring(desk)
    advice = advice_in(text, situation.file, situation.command)
    answer = desk.run(typed(text, advice, situation.rest.format(folder=desk.folder)))
    if situation.shows:
        assert re.search(situation.shows, answer.out), answer.text
        assert not answer.err
        return
    assert answer.code == 0, answer.text
    for command in situation.then:
        desk.does(command)
    desk.require_free()


def test_each_advice_of_the_source_is_run_in_a_situation_or_says_where() -> None:
    played = Counter((situation.file, f"airflow trident {situation.command}") for situation in SITUATIONS)
    advised = Counter((advice.file, advice.command) for advice in advices())
    missing = {key: count for key, count in (advised - played).items() if key not in ELSEWHERE}
    assert missing == {}
    assert ELSEWHERE.keys() <= advised.keys()
