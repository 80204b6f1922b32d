"""Connections cut at the worst moment, servers killed, clients forked: against a real ZooKeeper server."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_trident.errors import FencedError, LedgerUnavailableError, OutcomeUnknownError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.open import Ledgers, SessionPool, open_ledger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import NO_ATTEMPT, Command, Status
from airflow_trident.protocol.topologies import Definition
from tests.faults.proxy import FaultProxy, Frame, Verdict, cut_once, pass_all
from tests.fixtures import single
from tests.fixtures.ledger import (
    DEFINITION,
    STAGED,
    begun,
    claim,
    commit,
    committed_up_to,
    gated,
    lines,
    processed,
    statuses,
)

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[FaultProxy]:
    with FaultProxy(zookeeper.hosts) as proxy:
        yield proxy


@pytest.fixture
def witness(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> Iterator[Ledger]:
    """A client with an undisturbed connection, which sees what is really there."""
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        yield ledger


@pytest.fixture
def ledger(proxy: FaultProxy, witness: Ledger, ledger_root: str) -> Iterator[Ledger]:
    with open_ledger(ZooKeeperSettings(hosts=proxy.hosts), "words", root=ledger_root) as ledger:
        ledger.topology()
        yield ledger
        proxy.rule = pass_all


# ---- before and after apply, on every verb ---------------------------------------------------------------------
# name -> (what is there before, the verb, what must be there afterwards: (status, attempt, fence, pointer, epoch))

Prepare = Callable[[Ledger], object]
Verb = Callable[[Ledger, object], object]
VERBS: dict[str, tuple[Prepare, Verb, tuple[Status, int, int, int, int]]] = {
    "begin": (
        lambda ledger: None,
        lambda ledger, _: single.begin(ledger, claim(1), lines),
        (Status.PROCESSING, NO_ATTEMPT, 0, 0, 0),
    ),
    "attempt": (
        lambda ledger: begun(ledger, 1),
        lambda ledger, txid: single.attempt(ledger, txid, owner="e"),
        (Status.PROCESSING, 0, 0, 0, 0),
    ),
    "processed": (
        lambda ledger: single.attempt(ledger, begun(ledger, 1), owner="e"),
        lambda ledger, record: single.processed(ledger, 1, 0, STAGED),
        (Status.PROCESSED, 0, 0, 0, 0),
    ),
    "gate": (
        lambda ledger: processed(ledger, begun(ledger, 1)),
        lambda ledger, _: single.gate(ledger, 1, owner="c"),
        (Status.COMMITTING, 0, 1, 0, 0),
    ),
    "committed": (
        lambda ledger: gated(ledger, begun(ledger, 1)),
        single.committed,
        (Status.COMMITTED, 0, 1, 1, 0),
    ),
    "attempt after COMMITTING": (
        lambda ledger: gated(ledger, begun(ledger, 1)),
        lambda ledger, ticket: single.attempt(ledger, ticket, owner="c"),
        (Status.PROCESSING, 1, 1, 0, 0),
    ),
    "fail and try again": (
        lambda ledger: single.attempt(ledger, begun(ledger, 1), owner="e"),
        lambda ledger, _: ledger.fail(1, 0, "x", retry=True),
        (Status.PROCESSING, 0, 0, 0, 0),
    ),
    "fail": (
        lambda ledger: single.attempt(ledger, begun(ledger, 1), owner="e"),
        lambda ledger, _: ledger.fail(1, 0, "x"),
        (Status.FAILED, 0, 0, 0, 0),
    ),
    "skip": (
        lambda ledger: begun(ledger, 1),
        lambda ledger, _: ledger.skip(1, "x"),
        (Status.SKIPPED, NO_ATTEMPT, 0, 1, 0),
    ),
    "set_command": (
        lambda ledger: begun(ledger, 1),
        lambda ledger, _: ledger.set_command(Command.PAUSE),
        (Status.PROCESSING, NO_ATTEMPT, 0, 0, 1),
    ),
}


@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it was applied"])
@pytest.mark.parametrize("verb", VERBS)
def test_l3_a_connection_cut_on_a_write_is_resolved_without_double_effect(
    proxy: FaultProxy, ledger: Ledger, witness: Ledger, verb: str, after: bool
) -> None:
    prepare, act, expected = VERBS[verb]
    prepared = prepare(ledger)
    proxy.rule = cut_once("multi", after=after)
    result = act(ledger, prepared)
    assert proxy.cuts == 1
    view = witness.view(1)
    assert view.tx is not None
    found = (view.tx.status, view.tx.attempt, view.tx.fence, view.pointer.committed, view.topology.epoch)
    assert found == expected
    assert view.next_txid == 2
    if isinstance(result, Begun):
        assert (result.new, result.record) == (True, view.tx)


@pytest.mark.parametrize("kind", ["get", "sync"])
def test_a_connection_cut_on_a_read_is_read_again(
    proxy: FaultProxy, ledger: Ledger, witness: Ledger, kind: str
) -> None:
    begun(witness, 1)
    for after in (False, True):
        proxy.rule = cut_once(kind, after=after)
        assert ledger.view(1) == witness.view(1)
    assert proxy.cuts == 2


@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it was applied"])
def test_l3_registering_over_a_cut_connection_makes_one_life(
    proxy: FaultProxy, zookeeper: EmbeddedZooKeeper, ledger_root: str, after: bool
) -> None:
    with open_ledger(ZooKeeperSettings(hosts=proxy.hosts), "other", root=ledger_root) as ledger:
        # The multi that creates the life is the one that names its head; those before create the folders.
        proxy.rule = cut_once("multi", after=after, containing=b"/head")
        record = ledger.register(Definition(spouts={}, states={}))
        assert proxy.cuts == 1
        assert begun(ledger, 1) == 1
        assert ledger.topology() == record


def test_a_write_that_arrives_late_changes_nothing_more(proxy: FaultProxy, ledger: Ledger, witness: Ledger) -> None:
    begun(ledger, 1)
    held = []

    def hold_first(frame: Frame) -> Verdict:
        if frame.kind == "multi" and not frame.answer and not held:
            held.append(frame)
            return Verdict.HOLD
        return Verdict.PASS

    proxy.rule = hold_first
    record = single.attempt(ledger, 1, owner="e")
    before = witness.export()
    proxy.release()
    ledger.view(1)  # a round trip through the proxy, after what was released
    assert (record.attempt, len(held)) == (0, 1)
    assert witness.export() == before


def test_l3_every_transaction_survives_a_cut_every_few_frames(
    proxy: FaultProxy, ledger: Ledger, witness: Ledger
) -> None:
    seen = 0

    def rule(frame: Frame) -> Verdict:
        nonlocal seen
        seen += frame.kind == "multi"
        return Verdict.CUT if frame.kind == "multi" and seen % 7 == 0 else Verdict.PASS

    proxy.rule = rule
    committed_up_to(ledger, 12)
    assert proxy.cuts >= 8
    assert list(statuses(witness).values()) == [Status.COMMITTED] * 12
    assert witness.view(0).pointer.committed == 12
    assert [record.attempt for record in witness.transactions()] == [0] * 12


def test_l3_an_outcome_that_cannot_be_found_out_is_unknown_and_the_same_step_again_resolves_it(
    zookeeper: EmbeddedZooKeeper, proxy: FaultProxy, witness: Ledger, ledger_root: str
) -> None:
    settings = ZooKeeperSettings(hosts=proxy.hosts, op_deadline_s=0.5, connect_deadline_s=0.5)
    ticket = gated(witness, begun(witness, 1))
    with ZNodeLedger(ZooKeeperZNodes(settings), "words", ledger_root, step_deadline_s=1.0) as ledger:
        ledger.view(1)

        def cut_and_stay_away(frame: Frame) -> Verdict:
            if frame.answer and frame.kind == "multi":
                proxy.refusing = True
                return Verdict.CUT
            return Verdict.PASS

        proxy.rule = cut_and_stay_away
        with pytest.raises(OutcomeUnknownError, match="Run the same step again"):
            single.committed(ledger, ticket)
        proxy.refusing, proxy.rule = False, pass_all
        assert single.committed(ledger, ticket) == witness.view(1).tx
    assert statuses(witness) == {1: Status.COMMITTED}


# ---- two at once -----------------------------------------------------------------------------------------------


def test_p4_a_zombie_that_wakes_up_after_a_newer_committer_changes_nothing(ledger: Ledger, witness: Ledger) -> None:
    zombie = gated(ledger, begun(ledger, 1))
    newer = single.gate(witness, 1, owner="newer")
    before = witness.export()
    for word in (lambda: single.committed(ledger, zombie), lambda: single.attempt(ledger, zombie, owner="zombie")):
        with pytest.raises(FencedError):
            word()
    assert witness.export() == before
    assert single.committed(witness, newer).fence == newer.fence


def test_p1_processes_that_begin_at_once_get_dense_txids_one_for_each_claim(
    zookeeper: EmbeddedZooKeeper, witness: Ledger, ledger_root: str
) -> None:
    """Three forked processes begin the same twelve claims in different orders, over clients made before the fork."""
    claims, children = list(range(1, 13)), []
    # A child that went on using its parent's session would wait until these deadlines, and fail.
    znodes = ZooKeeperZNodes(ZooKeeperSettings(hosts=zookeeper.hosts, op_deadline_s=10.0))
    inherited = ZNodeLedger(znodes, "words", ledger_root, step_deadline_s=10.0)
    inherited.view(0)
    for turn in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Airflow forks with threads too; that is the point
            pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            code = 1
            try:
                for number in claims[turn * 4 :] + claims[: turn * 4]:
                    begun(inherited, number)
                inherited.close()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert list(statuses(witness)) == claims
    assert sorted(witness.export()["claims"].values()) == claims
    assert inherited.view(0).next_txid == 13
    inherited.close()


# ---- the server goes away --------------------------------------------------------------------------------------


def test_p9_a_server_that_is_killed_and_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk")
    status = server.start()
    try:
        with open_ledger(ZooKeeperSettings(hosts=server.hosts), "words") as ledger:
            ledger.register(DEFINITION)
            committed_up_to(ledger, 3)
            ticket = gated(ledger, begun(ledger, 4))
            os.kill(status.pid, signal.SIGKILL)
            again = server.start()
            assert (again.started_here, again.hosts) == (True, status.hosts)
            assert single.committed(ledger, ticket).status is Status.COMMITTED
            assert commit(ledger, begun(ledger, 5)).fence == 5
            assert list(statuses(ledger).values()) == [Status.COMMITTED] * 5
    finally:
        server.stop()


def test_a_client_gets_over_a_server_that_takes_a_connection_and_never_answers(
    zookeeper: EmbeddedZooKeeper, ledger_root: str
) -> None:
    """As one that is just starting may do. The connection is given up, not the session."""
    with FaultProxy(zookeeper.hosts) as proxy:
        settings = ZooKeeperSettings(hosts=proxy.hosts, op_deadline_s=9.0, session_timeout_s=40.0)
        with open_ledger(settings, "words", root=ledger_root) as ledger:
            proxy.silent = 1
            ledger.register(DEFINITION)
            assert proxy.silent == 0
            begun(ledger, 1)
            proxy.silent = 1
            proxy.cut_all()
            assert begun(ledger, 2) == 2
            assert proxy.silent == 0


def test_a_client_gets_over_a_server_that_was_restored_from_an_older_copy(tmp_path: Path) -> None:
    """ZooKeeper refuses a client that has seen newer data, for ever: only a new client gets in."""
    server, copy = EmbeddedZooKeeper(tmp_path / "zk"), tmp_path / "copy"
    server.start()
    try:
        settings = ZooKeeperSettings(hosts=server.hosts, op_deadline_s=4.0)
        with open_ledger(settings, "words") as ledger:
            ledger.register(DEFINITION)
            committed_up_to(ledger, 2)
            server.stop()
            shutil.copytree(server.data_dir / "data", copy)
            server.start()
            commit(ledger, begun(ledger, 3))
            server.stop()
            shutil.rmtree(server.data_dir / "data")
            shutil.copytree(copy, server.data_dir / "data")
            server.start()
            with pytest.raises(LedgerUnavailableError):
                ledger.view(0)
            assert ledger.view(0).pointer.committed == 2
    finally:
        server.stop()


def test_a_restart_of_the_server_refuses_no_use_of_a_kept_session(tmp_path: Path) -> None:
    server, sessions = EmbeddedZooKeeper(tmp_path / "zk"), SessionPool()
    status = server.start()

    def session() -> int:
        with sessions.used(Ledgers(ZooKeeperSettings(hosts=server.hosts, op_deadline_s=8.0))) as ledgers:
            ledgers.ledger("words").register(DEFINITION)
            return ledgers.znodes._client.client_id[0]

    try:
        assert session() == session()
        os.kill(status.pid, signal.SIGKILL)
        shutil.rmtree(server.data_dir / "data")  # the server begins anew, and refuses who has seen more than it has
        server.start()
        assert session() == session()
    finally:
        server.stop()


def test_uses_at_the_same_time_have_sessions_of_their_own_and_idle_sessions_end(
    zookeeper: EmbeddedZooKeeper, ledger_root: str
) -> None:
    now_s = [0.0]
    sessions = SessionPool(idle_s=60.0, clock=lambda: now_s[0])

    def ledgers(root: str = ledger_root) -> Ledgers:
        return Ledgers(ZooKeeperSettings(hosts=zookeeper.hosts), root=root)

    with sessions.used(ledgers()) as first, sessions.used(ledgers()) as second:
        assert (first.names(), second.names()) == ([], [])
        assert first is not second
    with sessions.used(ledgers(f"{ledger_root}-other")) as other:
        other.names()
        assert other not in (first, second)
    now_s[0] = 30.0
    with sessions.used(ledgers()) as again:
        assert again in (first, second)
    now_s[0] = 70.0
    sessions.close_idle()
    assert [kept for kept in (first, second, other) if kept.znodes.is_connected] == [again]
    now_s[0] = 90.0
    sessions.close_idle()
    assert not again.znodes.is_connected


def test_a_server_that_is_away_is_one_clear_error_and_the_client_works_when_it_is_back(
    proxy: FaultProxy, witness: Ledger, ledger_root: str
) -> None:
    settings = ZooKeeperSettings(hosts=proxy.hosts, op_deadline_s=1.0, connect_deadline_s=1.0)
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        ledger.view(0)
        proxy.refusing = True
        proxy.cut_all()
        for attempt in (lambda: ledger.view(0), lambda: single.begin(ledger, claim(1), lines)):
            with pytest.raises(LedgerUnavailableError, match=f"ZooKeeper at {proxy.hosts} does not answer"):
                attempt()
        proxy.refusing = False
        assert begun(ledger, 1) == 1
