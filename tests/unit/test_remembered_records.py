"""What a process that goes from transaction to transaction remembers of the ledger's records."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command
from tests.fixtures.ledger import DEFINITION, begun


def test_what_every_step_looks_at_is_decoded_again_only_when_somebody_changed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[str] = []

    def counted(name: str) -> None:
        original: Any = getattr(codec, name)
        monkeypatch.setattr(codec, name, lambda data, path: decoded.append(name) or original(data, path))

    tree = MemoryTree()
    ledger, other = (ZNodeLedger(MemoryZNodes(tree), "words") for _ in range(2))
    ledger.register(DEFINITION)
    begun(ledger, 1)
    ledger.view(1)
    for name in ("decode_topology", "decode_head", "decode_pointer", "decode_exceptions"):
        counted(name)
    for _ in range(3):
        before = ledger.view(1)
        assert ledger.view(1, remembered=True) == before
    assert decoded == []
    other.set_command(Command.PAUSE)
    other.skip(1, "nobody needs it")
    assert ledger.view(1).topology.command is Command.PAUSE
    assert list(ledger.view(1).exceptions.skipped) == [1]
    assert ledger.view(1).pointer.committed == 1
