"""The ledger of a bound topology against the plain one: see `test_ledger_model.py`. Here every transaction has a
partition, and requests begin, join and refresh it with what they saw before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from airflow_trident.ledger.answers import AskedPartition, NextBatches
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.protocol.decide import MendedSources
from airflow_trident.protocol.partition_keys import PartitionEntry
from airflow_trident.protocol.partitions import Partitions
from airflow_trident.protocol.records import Claim, TxRecord
from airflow_trident.types import Json
from tests.fixtures.faulty_znodes import FaultyZNodes
from tests.fixtures.ledger import DEFINITION
from tests.fixtures.ledger_calls import ATTEMPT_BY, NETWORK, SEVERAL, WHO, Network
from tests.integration.test_ledger_model import LedgerAgainstPlainLedger

DAYS = Partitions("day", begin="2026-01-01")
KEYS = {("a",): "2026-11-29", ("a", "b"): "2026-11-30", ("b",): "2026-12-01", (): "2026-11-29"}
"""Of two months."""
KEY = st.sampled_from(sorted(set(KEYS.values())))
CONTENT = st.integers(0, 2)
"""What the sources of a partition hold."""


class BoundLedgerAgainstPlainLedger(LedgerAgainstPlainLedger):
    tickets = Bundle("tickets")
    groups = Bundle("groups")
    definition = replace(DEFINITION, partitions=DAYS.describe())

    def asked(self, key: str, entry: PartitionEntry | None = None, content: int = 0) -> AskedPartition:
        """:param entry: what was seen; None: as it is."""
        seen = self.plain.partition(key).entry if entry is None else entry
        return AskedPartition(partition=DAYS.parse(key), seen=seen, metadata=metadata_of(key, content))

    def batches_for(self, claims: Sequence[Claim], keys: Sequence[str], **named: Any) -> NextBatches:
        asked = {claim.key: self.asked(key) for claim, key in zip(claims, keys, strict=True)}
        return NextBatches(claims, partitions=asked, **named)

    @rule(
        who=WHO,
        network=NETWORK,
        again=st.sampled_from([0, 0, 0, 1, 2]),
        streams=st.sampled_from(sorted(KEYS)),
        max_pending=st.sampled_from([2, 4, 6]),
        attempt_by=ATTEMPT_BY,
    )
    def begin(
        self, who: int, network: Network, again: int, streams: tuple[str, ...], max_pending: int, attempt_by: str
    ) -> None:
        (claim,) = self.claims(again, 1)
        batches = self.batches_for([claim], [KEYS[streams]], max_pending=max_pending, attempt_by=attempt_by)
        self.both(who, network, lambda ledger: ledger.begin(batches))

    @rule(who=WHO, network=NETWORK, key=KEY, content=CONTENT, former=st.booleans())
    def begin_with_what_was_seen(self, who: int, network: Network, key: str, content: int, former: bool) -> None:
        """:param former: the sources were looked at before the last request of the key began."""
        entry = self.plain.partition(key).entry
        seen = replace(entry, n=max(entry.n - 1, 0), tx=entry.before, src=entry.before_src) if former else entry
        (claim,) = self.claims(0, 1)
        batches = NextBatches([claim], max_pending=6, partitions={claim.key: self.asked(key, seen, content)})
        self.both(who, network, lambda ledger: ledger.begin(batches))

    @rule(who=WHO, network=NETWORK, again=st.sampled_from([0, 0, 0, 1, 2]), many=SEVERAL, attempt_by=ATTEMPT_BY)
    def begin_together(self, who: int, network: Network, again: int, many: int, attempt_by: str) -> None:
        claims = self.claims(again, many)
        keys = sorted(set(KEYS.values()))[:many]
        batches = self.batches_for(claims, keys, max_pending=6, attempt_by=attempt_by)
        self.both(who, network, lambda ledger: ledger.begin(batches))

    @rule(who=WHO, network=NETWORK, pair=groups, retention=st.integers(1, 3), many=SEVERAL, attempt_by=ATTEMPT_BY)
    def committed_then_begin(
        self, who: int, network: Network, pair: tuple, retention: int, many: int, attempt_by: str
    ) -> None:
        claims = self.claims(0, many)
        keys = sorted(set(KEYS.values()))[:many]
        then = self.batches_for(claims, keys, max_pending=4, attempt_by=attempt_by)

        def act(ledger: Ledger, tickets: Any) -> object:
            return ledger.committed(tickets, retention=retention, then=then)

        self.with_ticket(who, network, pair, act)

    @rule(who=WHO, network=NETWORK, key=KEY, beside=st.sampled_from([0, 0, 0, -1]), again=st.integers(0, 2))
    def join(self, who: int, network: Network, key: str, beside: int, again: int) -> None:
        entry, (claim,) = self.entry_beside(key, beside), self.requests(again)
        self.both(who, network, lambda ledger: ledger.join(entry, key, claim=claim))

    @rule(
        who=WHO,
        network=NETWORK,
        key=KEY,
        beside=st.sampled_from([0, 0, 0, -1]),
        again=st.integers(0, 2),
        content=CONTENT,
        claims=st.booleans(),
    )
    def refresh(
        self, who: int, network: Network, key: str, beside: int, again: int, content: int, claims: bool
    ) -> None:
        entry, (claim,) = self.entry_beside(key, beside), self.requests(again)
        new = metadata_of(key, content)
        asks = claim if claims else None
        self.both(who, network, lambda ledger: ledger.refresh(entry, key, new, "asked", claim=asks))

    @rule(who=WHO, network=NETWORK, key=KEY, content=CONTENT)
    def accept_source(self, who: int, network: Network, key: str, content: int) -> None:
        txid = self.plain.partition(key).entry.tx
        self.both(who, network, lambda ledger: ledger.accept_source(txid, Looked(key, content), "mended"))

    @rule(who=WHO, network=NETWORK, key=KEY)
    def close_transaction(self, who: int, network: Network, key: str) -> None:
        txid = self.plain.partition(key).entry.tx
        self.both(who, network, lambda ledger: ledger.close_transaction(txid, "nobody wants it"))

    def entry_beside(self, key: str, beside: int) -> PartitionEntry:
        """:param beside: -1: the entry as it was some looks ago."""
        entry = self.plain.partition(key).entry
        return replace(entry, looks=entry.looks + beside) if entry.looks else replace(entry, tx=entry.tx + beside)

    def requests(self, again: int) -> tuple[Claim]:
        """A request that gets no transaction of its own; or one that has asked before."""
        return (Claim(key=f"joins-{max(len(self.plain.export()['claims']) - again, 0)}", run_ms=1),)

    # ---- what must always hold ---------------------------------------------------------------------------------

    @invariant()
    def the_same_index_is_kept(self) -> None:
        if not hasattr(self, "clients"):
            return
        onlooker = ZNodeLedger(FaultyZNodes(self.tree), "words")
        assert onlooker.partitions() == self.plain.partitions(), f"{onlooker.partitions()} != {self.plain.partitions()}"
        assert onlooker.export()["partitions"] == self.plain.export()["partitions"]

    @invariant()
    def a_partition_has_one_unfinished_transaction_and_its_last_one_is_in_the_index(self) -> None:
        if not hasattr(self, "clients"):
            return
        of_key: defaultdict[str, list[TxRecord]] = defaultdict(list)
        for tx in self.plain.transactions():
            assert tx.partition is not None
            of_key[tx.partition.key].append(tx)
        for key, records in of_key.items():
            seen = self.plain.partition(key)
            numbers = [tx.partition.n for tx in records if tx.partition]
            assert numbers == sorted(set(numbers))
            assert seen.entry.n >= numbers[-1]
            unfinished = [tx.txid for tx in records if not tx.status.lets_others_pass]
            assert unfinished in ([], [seen.entry.tx])
            committed = [tx.txid for tx in records if tx.status == "COMMITTED"]
            assert not committed or committed[-1] == seen.committed_txid


@dataclass(frozen=True)
class Looked(MendedSources):
    key: str
    content: int

    def accept(self, stream: str, metadata: Json) -> Json:
        return metadata_of(self.key, self.content)[stream]

    def follow(self, stream: str, later: Json, accepted: Json) -> Json:
        return later


def metadata_of(key: str, content: int) -> dict[str, Any]:
    return {"a": {"partition": key, "batch": content}}


TestBoundLedgerAgainstPlainLedger = BoundLedgerAgainstPlainLedger.TestCase
TestBoundLedgerAgainstPlainLedger.settings = settings(max_examples=25, stateful_step_count=40)
