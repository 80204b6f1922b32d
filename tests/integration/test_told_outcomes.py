"""What a drain or a runner that can begin nothing leaves in the ledger, where people look."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import DefinitionChangedError
from airflow_trident.protocol.outcomes import OutcomeKind
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.runtime import World
from tests.integration.test_drain import drain


@pytest.mark.parametrize("who", ["drain", "runner"])
def test_another_definition_is_an_error_until_the_topology_is_as_it_was(tmp_path: Path, who: str) -> None:
    world = World(tmp_path)

    def begin() -> None:
        if who == "drain":
            drain(world)
        else:
            runs = LocalRunner(
                ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging
            )
            runs.run()

    def kind() -> OutcomeKind:
        outcome = world.ledger.coordinator()
        assert outcome is not None
        assert outcome.error.startswith("DefinitionChangedError: ") is (outcome.kind is OutcomeKind.ERROR)
        return outcome.kind

    begin()
    assert kind() is OutcomeKind.NOTHING_NEW
    as_it_was, world.commutes = world.topology, False
    world.topology = world.make()
    with pytest.raises(DefinitionChangedError):
        begin()
    assert kind() is OutcomeKind.ERROR
    world.topology = as_it_was
    begin()
    assert kind() is OutcomeKind.NOTHING_NEW
