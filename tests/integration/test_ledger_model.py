"""The ledger over ZooKeeper against the plain one: any sequence of calls, by two clients with outdated memories, over a
network that loses and delays, must give the same answers and end in the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from airflow_trident.ledger.answers import NextBatches, StagedAttempt
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.znodes import Op
from airflow_trident.protocol.metadata import BASE
from airflow_trident.protocol.records import Claim, Command, CommitTicket, Status, TxRecord
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.faulty_znodes import Fault, FaultyTree, FaultyZNodes
from tests.fixtures.ledger import DEFINITION, OTHER_STAGED, STAGED
from tests.fixtures.ledger_calls import (
    ATTEMPT_BY,
    BACK,
    BESIDE,
    CALM,
    NETWORK,
    SEVERAL,
    SIZE,
    WHO,
    Network,
    alike,
    alike_outcome,
    choice,
    outcome,
    window,
)
from tests.oracle.ledger import OracleLedger


class LedgerAgainstPlainLedger(RuleBasedStateMachine):
    tickets = Bundle("tickets")
    groups = Bundle("groups")
    """Tickets of groups."""
    definition = DEFINITION

    def beside(self, txid: int) -> dict[str, Json]:
        """What a transaction says beside its streams."""
        return {}

    def batches(self, txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        until = (position.get("a") or [0, 0])[1]
        return [{"a": [txid + number, until + number + 1]} | self.beside(txid + number) for number in range(most)]

    @initialize()
    def open(self) -> None:
        self.faults: list[Fault | None] = []
        self.late_ones_arrive_first = False
        self.tree = FaultyTree()
        self.clients = [ZNodeLedger(FaultyZNodes(self.tree, fault_of=self.next_fault), "words") for _ in range(2)]
        self.plain = OracleLedger("words")
        for ledger in (*self.clients, self.plain):
            ledger.register(self.definition)

    def next_fault(self, ops: Sequence[Op]) -> Fault | None:
        if self.late_ones_arrive_first:
            self.tree.release()
        return self.faults.pop(0) if self.faults else None

    def both(self, who: int, network: Network, call: Callable[[Ledger], object]) -> tuple[object, object]:
        """The call on one of the clients and on the plain ledger; both answers, or both the same error."""
        self.faults, self.late_ones_arrive_first = list(network.faults), network.late_ones_arrive_first
        found, expected = outcome(call, self.clients[who]), outcome(call, self.plain)
        self.faults = []
        self.tree.release()
        assert alike_outcome(found) == alike_outcome(expected)
        return found, expected

    # ---- calls -------------------------------------------------------------------------------------------------

    @rule(
        who=WHO,
        network=NETWORK,
        again=st.sampled_from([0, 0, 0, 1, 2]),
        streams=st.sampled_from([("a",), ("a", "b"), ("b",), ()]),
        max_pending=st.sampled_from([2, 4, 6]),
        attempt_by=ATTEMPT_BY,
    )
    def begin(
        self, who: int, network: Network, again: int, streams: tuple[str, ...], max_pending: int, attempt_by: str
    ) -> None:
        def metadata_of(txid: int, position: dict) -> dict:
            found = {stream: [txid, (position.get(stream) or [0, 0])[1] + 1] for stream in streams}
            return found and found | self.beside(txid)

        claim = Claim(key=f"run-{self.plain.view(0).next_txid - again}", run_ms=1)
        self.both(
            who,
            network,
            lambda ledger: single.begin(ledger, claim, metadata_of, max_pending=max_pending, attempt_by=attempt_by),
        )

    @rule(who=WHO, network=NETWORK, back=BACK, size=SIZE)
    def attempt_alone(self, who: int, network: Network, back: int, size: int) -> None:
        txid = self.txid(back)
        self.both(who, network, lambda ledger: single.attempt(ledger, txid, owner="e", metadata_of=choice(size)))

    @rule(who=WHO, network=NETWORK, back=BACK, beside=BESIDE, staged=st.sampled_from([STAGED, STAGED, OTHER_STAGED]))
    def processed(self, who: int, network: Network, back: int, beside: int, staged: Any) -> None:
        txid, attempt = self.txid(back), self.attempt(back) + beside
        self.both(who, network, lambda ledger: single.processed(ledger, txid, attempt, staged))

    @rule(target=tickets, who=WHO, network=NETWORK, back=BACK)
    def gate(self, who: int, network: Network, back: int) -> Any:
        txid = self.txid(back)
        return self.ticket(self.both(who, network, lambda ledger: single.gate(ledger, txid, owner="c")))

    @rule(target=tickets, who=WHO, network=NETWORK, back=BACK, steps=st.integers(1, 6), retention=st.integers(1, 3))
    def go_on(self, who: int, network: Network, back: int, steps: int, retention: int) -> Any:
        """What healthy tasks do next, one step after the other, so that sequences get far."""
        txid, pair = self.txid(back), None
        for _ in range(steps):
            tx = self.plain.view(txid).tx
            if tx is None and txid < self.plain.view(0).next_txid:
                break  # pruned
            if tx is None:
                self.set_command(who, network, Command.RUN)
                self.begin(who, network, 0, ("a",), 6, "")
            elif pair is not None:
                self.committed(who, network, pair, retention)
                break
            elif tx.staged is not None:
                pair = self.both(who, network, lambda ledger: single.gate(ledger, txid, owner="c"))
                if not isinstance(pair[0], CommitTicket):
                    return multiple()
            elif tx.status is Status.PROCESSING and tx.attempt >= 0:
                attempt = tx.attempt
                self.both(who, network, lambda ledger, attempt=attempt: single.processed(ledger, txid, attempt, STAGED))
            else:
                self.both(who, network, lambda ledger: single.attempt(ledger, txid, owner="e", metadata_of=choice(1)))
        return pair if pair is not None else multiple()

    @rule(who=WHO, network=NETWORK, pair=tickets, retention=st.integers(1, 3))
    def committed(self, who: int, network: Network, pair: tuple, retention: int) -> None:
        self.with_ticket(
            who, network, pair, lambda ledger, ticket: single.committed(ledger, ticket, retention=retention)
        )

    @rule(who=WHO, network=NETWORK, pair=consumes(tickets), retention=st.integers(1, 3))
    def committed_at_last(self, who: int, network: Network, pair: tuple, retention: int) -> None:
        self.committed(who, network, pair, retention)

    @rule(who=WHO, network=NETWORK, pair=tickets, size=SIZE)
    def attempt_of_ticket(self, who: int, network: Network, pair: tuple, size: int) -> None:
        def act(ledger: Ledger, ticket: CommitTicket) -> object:
            return single.attempt(ledger, ticket, owner="c", metadata_of=choice(size))

        self.with_ticket(who, network, pair, act)

    @rule(who=WHO, network=NETWORK, back=BACK, beside=BESIDE, for_good=st.booleans())
    def attempt_fails(self, who: int, network: Network, back: int, beside: int, for_good: bool) -> None:
        txid, attempt = self.txid(back), self.attempt(back) + beside
        self.both(who, network, lambda ledger: ledger.fail(txid, attempt, "x", retry=not for_good))

    @rule(who=WHO, network=NETWORK, back=BACK)
    def skip(self, who: int, network: Network, back: int) -> None:
        txid = self.txid(back)
        self.both(who, network, lambda ledger: ledger.skip(txid, "x"))

    # ---- groups ------------------------------------------------------------------------------------------------

    @rule(who=WHO, network=NETWORK, again=st.sampled_from([0, 0, 0, 1, 2]), many=SEVERAL, attempt_by=ATTEMPT_BY)
    def begin_together(self, who: int, network: Network, again: int, many: int, attempt_by: str) -> None:
        claims = self.claims(again, many)
        self.both(
            who,
            network,
            lambda ledger: ledger.begin(NextBatches(claims, self.batches, max_pending=6, attempt_by=attempt_by)),
        )

    @rule(who=WHO, network=NETWORK, back=BACK, many=SEVERAL, size=SIZE)
    def attempt_of_several(self, who: int, network: Network, back: int, many: int, size: int) -> None:
        txids = self.several(back, many)
        self.both(who, network, lambda ledger: ledger.attempt(txids, owner="e", metadata_of=choice(size)))

    @rule(who=WHO, network=NETWORK, back=BACK, many=SEVERAL, beside=BESIDE)
    def processed_together(self, who: int, network: Network, back: int, many: int, beside: int) -> None:
        done = self.staged(back, many, beside)
        self.both(who, network, lambda ledger: ledger.processed(done))

    @rule(target=groups, who=WHO, network=NETWORK, back=BACK, many=SEVERAL)
    def gate_together(self, who: int, network: Network, back: int, many: int) -> Any:
        txids = self.several(back, many)
        return self.group(self.both(who, network, lambda ledger: ledger.gate(txids, owner="c")))

    @rule(target=groups, who=WHO, network=NETWORK, back=BACK, many=SEVERAL, beside=BESIDE)
    def processed_at_gate(self, who: int, network: Network, back: int, many: int, beside: int) -> Any:
        done = self.staged(back, many, beside)
        pair = self.both(who, network, lambda ledger: ledger.processed(done, gate_by="c"))
        return self.group(tuple(getattr(answer, "tickets", answer) for answer in pair))

    @rule(target=groups, who=WHO, network=NETWORK, many=SEVERAL)
    def go_on_together(self, who: int, network: Network, many: int) -> Any:
        """What a healthy drain does, so that sequences get far."""
        self.set_command(who, network, Command.RUN)
        self.begin_together(who, network, 0, many, "drain")
        view = self.plain.view(0)
        txids = [tx.txid for tx in self.plain.transactions(view.pointer.committed + 1)]
        open_ones = [txid for txid in txids if txid not in view.exceptions.skipped]
        self.both(who, network, lambda ledger: ledger.attempt(open_ones, owner="e", metadata_of=choice(1)))
        done = self.staged(0, many, 0)
        pair = self.both(who, network, lambda ledger: ledger.processed(done, gate_by="c"))
        return self.group(tuple(getattr(answer, "tickets", answer) for answer in pair))

    @rule(who=WHO, network=NETWORK, pair=groups, retention=st.integers(1, 3))
    def committed_together(self, who: int, network: Network, pair: tuple, retention: int) -> None:
        self.with_ticket(who, network, pair, lambda ledger, many: ledger.committed(many, retention=retention))

    @rule(who=WHO, network=NETWORK, pair=groups, retention=st.integers(1, 3), many=SEVERAL, attempt_by=ATTEMPT_BY)
    def committed_then_begin(
        self, who: int, network: Network, pair: tuple, retention: int, many: int, attempt_by: str
    ) -> None:
        claims = self.claims(0, many)

        def act(ledger: Ledger, tickets: Any) -> object:
            return ledger.committed(
                tickets,
                retention=retention,
                then=NextBatches(claims, self.batches, max_pending=4, attempt_by=attempt_by),
            )

        self.with_ticket(who, network, pair, act)

    @rule(target=tickets, pair=groups, place=st.integers(0, 2))
    def one_ticket_of(self, pair: tuple, place: int) -> Any:
        return tuple(many[min(place, len(many) - 1)] for many in pair)

    @rule(target=groups, pair=groups, place=st.integers(0, 2))
    def without_one(self, pair: tuple, place: int) -> Any:
        fewer = tuple((*many[:place], *many[place + 1 :]) for many in pair)
        return fewer if all(fewer) else multiple()

    @rule(who=WHO, network=NETWORK, pair=groups, size=SIZE)
    def attempt_of_tickets(self, who: int, network: Network, pair: tuple, size: int) -> None:
        def act(ledger: Ledger, tickets: Any) -> object:
            return ledger.attempt(tickets, owner="c", metadata_of=choice(size))

        self.with_ticket(who, network, pair, act)

    def claims(self, again: int, many: int) -> list[Claim]:
        first = self.plain.view(0).next_txid - again
        return [Claim(key=f"run-{first + number}", run_ms=1) for number in range(many)]

    def several(self, back: int, many: int) -> list[int]:
        """From one transaction on, as a group would take them: not what is skipped."""
        first = self.txid(back)
        skipped = self.plain.view(0).exceptions.skipped
        return [txid for txid in range(first, first + many + 1) if txid == first or txid not in skipped][:many]

    def staged(self, back: int, many: int, beside: int) -> list[StagedAttempt]:
        """:param beside: of the last one's attempt."""
        found = []
        for txid in self.several(back, many):
            tx = self.plain.view(txid).tx
            found.append(StagedAttempt(txid=txid, attempt=tx.attempt if tx else 0, staged=STAGED))
        return [*found[:-1], replace(found[-1], attempt=found[-1].attempt + beside)]

    def group(self, pair: tuple) -> Any:
        return pair if isinstance(pair[0], tuple) else multiple()

    # ---- parts of calls ----------------------------------------------------------------------------------------

    def txid(self, back: int) -> int:
        view = self.plain.view(0)
        special = (*view.exceptions.skipped, *view.exceptions.late, *view.exceptions.failed)
        if back >= 5 and special:
            return special[0]  # an old one that somebody replays late
        return view.pointer.committed + 1 + back

    def attempt(self, back: int) -> int:
        tx = self.plain.view(self.txid(back)).tx
        return tx.attempt if tx else 0

    def ticket(self, pair: tuple) -> Any:
        return pair if isinstance(pair[0], CommitTicket) else multiple()

    def with_ticket(
        self, who: int, network: Network, pair: tuple, act: Callable[[Ledger, CommitTicket], object]
    ) -> None:
        self.both(who, network, lambda ledger: act(ledger, pair[1] if ledger is self.plain else pair[0]))

    @rule(who=WHO, network=NETWORK, command=st.sampled_from([Command.RUN, Command.RUN, Command.RUN, Command.PAUSE]))
    def set_command(self, who: int, network: Network, command: Command) -> None:
        self.both(who, network, lambda ledger: ledger.set_command(command))

    @rule(who=WHO, txid=st.integers(-1, 9))
    def view(self, who: int, txid: int) -> None:
        self.both(who, CALM, lambda ledger: ledger.view(txid))

    # ---- what must always hold ---------------------------------------------------------------------------------

    @invariant()
    def the_same_is_kept(self) -> None:
        if not hasattr(self, "clients"):
            return
        # A client of its own: looking must not refresh the memories of the others.
        onlooker = ZNodeLedger(FaultyZNodes(self.tree), "words")
        assert [alike(tx) for tx in onlooker.transactions()] == [alike(tx) for tx in self.plain.transactions()]
        found, expected = onlooker.view(0), self.plain.view(0)
        assert alike(found) == alike(expected)
        assert onlooker.export()["claims"] == self.plain.export()["claims"]

    @invariant()
    def p6_everything_up_to_the_pointer_let_the_others_pass(self) -> None:
        if not hasattr(self, "clients"):
            return
        view = self.plain.view(0)
        special = {*view.exceptions.failed, *view.exceptions.skipped, *view.exceptions.late}
        for tx in self.plain.transactions():
            if tx.txid > view.pointer.committed:
                assert tx.status is not Status.COMMITTED
            elif tx.txid not in special:
                assert tx.status.is_final


class OpaqueLedgerAgainstPlainLedger(LedgerAgainstPlainLedger):
    definition = Definition(
        spouts={
            "a": SpoutDefinition(text="Numbers", kind=SpoutKind.OPAQUE),
            "b": SpoutDefinition(text="Numbers"),
        },
        states={},
    )

    @invariant()
    def p2_batches_follow_each_other_and_those_without_one_are_the_last(self) -> None:
        if not hasattr(self, "clients"):
            return
        previous: TxRecord | None = None
        for tx in self.plain.transactions():
            if previous is not None and previous.txid == tx.txid - 1:
                assert tx.invalidated or not previous.invalidated
                batch = tx.metadata.get("a")
                if batch is not None and not previous.invalidated:
                    assert batch[1] > (previous.position.get("a") or [0, 0])[1]
                elif not tx.invalidated:
                    assert tx.position.get("a") == previous.position.get("a")
            previous = tx


class SharedMetadata:
    """Those of a transaction are large, and mostly those of the one before it."""

    tree: FaultyTree
    clients: list[ZNodeLedger]
    plain: OracleLedger

    def beside(self, txid: int) -> dict[str, Json]:
        return window(txid)

    @invariant()
    def p10_nothing_is_kept_that_nobody_shares(self) -> None:
        if not hasattr(self, "clients"):
            return
        ledger = ZNodeLedger(FaultyZNodes(self.tree), "words")
        folder = LedgerPaths(ledger._path, ledger.topology().incarnation).chunks
        kept = self.tree.children(folder) or ()
        assert len([name for name in kept if name.startswith(BASE)]) <= len(self.plain.transactions()) + 1


class LedgerWithSharedMetadata(SharedMetadata, LedgerAgainstPlainLedger):
    pass


class OpaqueLedgerWithSharedMetadata(SharedMetadata, OpaqueLedgerAgainstPlainLedger):
    pass


TestLedgerAgainstPlainLedger = LedgerAgainstPlainLedger.TestCase
TestOpaqueLedgerAgainstPlainLedger = OpaqueLedgerAgainstPlainLedger.TestCase
TestOpaqueLedgerAgainstPlainLedger.settings = settings(max_examples=40, stateful_step_count=40)
TestLedgerAgainstPlainLedger.settings = settings(max_examples=80, stateful_step_count=40)
TestLedgerWithSharedMetadata = LedgerWithSharedMetadata.TestCase
TestOpaqueLedgerWithSharedMetadata = OpaqueLedgerWithSharedMetadata.TestCase
TestLedgerWithSharedMetadata.settings = settings(max_examples=15, stateful_step_count=40)
TestOpaqueLedgerWithSharedMetadata.settings = settings(max_examples=8, stateful_step_count=40)
