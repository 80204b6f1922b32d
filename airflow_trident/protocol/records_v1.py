"""Reads the texts in records of version 1 into the fields of version 2; nothing else reads such texts.

Version 1 wrote the owner of an attempt, the kind of a spout and the notes of a state as texts for people.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from airflow_trident.protocol.records import Owner
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.topology_definition import SpoutDefinition, StateDefinition

# A DAG id or task id has no slash; a run id may have anything.
_TASK = re.compile(
    r"(?P<dag_id>[^/]+)/(?P<run_id>.+)/(?P<task_id>[^/\[\]]+?)(\[(?P<map_index>\d+)\])? try (?P<try_number>\d+)"
    r"( on (?P<host>[^/]*)/(?P<pid>\d+))?",
    re.DOTALL,
)
_PERSON = re.compile(r"(?P<user>[^@/]+)@(?P<host>[^/]+)/(?P<pid>\d+)")
_NOTE = "; not exactly once: "


def topology(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a topology's record. The decoder refuses what version 1 did not write like this."""
    definition = body.get("definition")
    if not isinstance(definition, dict):
        return body
    spouts, states = definition.get("spouts"), definition.get("states")
    return body | {
        "definition": definition
        | ({"spouts": {name: _spout(text) for name, text in spouts.items()}} if isinstance(spouts, dict) else {})
        | ({"states": {name: _state(text) for name, text in states.items()}} if isinstance(states, dict) else {})
    }


def transaction(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a transaction's record."""
    owner = body.get("owner")
    return body | {"owner": asdict(owner_of(owner))} if isinstance(owner, str) else body


def owner_of(text: str) -> Owner:
    """The owner of a record, from its text."""
    task, person = _TASK.fullmatch(text), _PERSON.fullmatch(text)
    if task is not None:
        return Owner(
            dag_id=task["dag_id"],
            run_id=task["run_id"],
            task_id=task["task_id"],
            map_index=int(task["map_index"] or -1),
            try_number=int(task["try_number"]),
            host=task["host"] or "",
            pid=int(task["pid"] or 0),
        )
    if person is not None:
        return Owner(user=person["user"], host=person["host"], pid=int(person["pid"]))
    return Owner(program=text)


def claim_keys(dag_id: str, run_id: str, map_index: int, index: int) -> tuple[str, ...]:
    """The keys under which version 1 may have kept a coordinator's claim. The key of a run's first transaction depended
    on how many the run was to take. Version 2 uses no such key: a DAG id has neither slash nor colon."""
    key = f"{dag_id}/{run_id}/{map_index}"
    return (key, f"{key}/0") if index == 0 else (f"{key}/{index}",)


def _spout(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    name, _, last = text.rpartition(" ")
    kind = next((kind for kind in SpoutKind if kind.value == last), None)
    found = SpoutDefinition(text=text) if kind is None else SpoutDefinition(text=name, kind=kind)
    return asdict(found)


def _state(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    plain, found, note = text.partition(_NOTE)
    notes = [f"{_NOTE.removeprefix('; ')}{note}"] if found else []
    return {**asdict(StateDefinition(text=plain)), "notes": notes}
