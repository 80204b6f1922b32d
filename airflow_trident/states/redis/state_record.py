"""The record of a state in Redis: its marker, its owner, and the request that wrote it. JSON, with a version."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.contracts.state import Marker, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError, DefinitionChangedError, NewerRecordError
from airflow_trident.states.core.marker import group_from_json, group_to_json

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`text`: as stored; the next request compares it. `op`: the request that wrote it. `kept`: how many keys have a
    value from before the highest transaction. `keys`: layout `hash`: how many keys the map has; None if the version
    that wrote the record did not count."""

    text: bytes
    marker: Marker
    op: str
    kept: int
    keys: int | None = None

    def found_with(self, keys: int, where: str) -> Record:
        """The record, for a hash that has so many keys now. If all are gone, the state holds nothing, and only the
        fence and the incarnation are known.

        :raises CorruptRecordError: some keys are gone, or somebody added others.
        """
        if self.keys in (None, keys):
            return replace(self, keys=keys)
        if keys == 0:
            empty = Marker(incarnation=self.marker.incarnation, high=0, fence=self.marker.fence)
            return replace(self, marker=empty, kept=0, keys=0)
        raise keys_changed(f"{keys} keys where its record {where} says {self.keys}")


def keys_changed(what: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"the data of a state have {what}: keys were removed or written by somebody else",
        "Restore the store from a copy, or remove all keys of the state, its record too, and run `airflow trident "
        "rebuild`.",
    )


def encode_record(spec: StateSpec, layout: str, marker: Marker, *, op: str, kept: int) -> bytes:
    content: dict[str, Any] = {
        "v": VERSION,
        "topology": spec.topology,
        "state": spec.name,
        "definition": definition(spec, layout),
        "incarnation": marker.incarnation,
        "high": marker.high,
        "attempt": marker.attempt,
        "fence": marker.fence,
        "holes": [[first, last] for first, last in marker.holes],
        "position": marker.position,
        "op": op,
        "kept": kept,
    }
    if marker.group:  # versions that know no groups omit it when they write
        content["group"] = group_to_json(marker.group)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def definition(spec: StateSpec, layout: str) -> str:
    keys, values = ", ".join(map(str, spec.keys)), ", ".join(map(str, spec.values))
    return f"({keys}) -> ({values}) as {layout}"


def decode_record(text: bytes, spec: StateSpec, layout: str, where: str) -> Record:
    """
    :raises ConfigurationError: it belongs to another state. :raises DefinitionChangedError: it was made with other
        fields.
    :raises CorruptRecordError, NewerRecordError: it cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        if content["v"] > VERSION:
            raise NewerRecordError(
                f"the record {where} has version {content['v']}, and this airflow-trident reads up to {VERSION}",
                "Install the airflow-trident version that wrote it, or a newer one.",
            )
        _require_own(content, spec, layout, where)
        marker = Marker(
            incarnation=str(content["incarnation"]),
            high=int(content["high"]),
            fence=int(content["fence"]),
            holes=tuple((int(first), int(last)) for first, last in content["holes"]),
            position=dict(content["position"]),
            attempt=int(content["attempt"]),
            group=group_from_json(content.get("group", [])),
        )
        return Record(
            text=text, marker=marker, op=str(content["op"]), kept=int(content["kept"]), keys=content.get("keys")
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecordError(
            f"the record {where} cannot be read: {text[:80]!r}", "Restore the store from a copy."
        ) from error


def _require_own(content: dict[str, Any], spec: StateSpec, layout: str, where: str) -> None:
    if (content["topology"], content["state"]) != (spec.topology, spec.name):
        raise ConfigurationError(
            f"{where} belongs to state {content['state']!r} of topology {content['topology']!r}, not to state "
            f"{spec.name!r} of topology {spec.topology!r}",
            "Give the state another key, as in RedisState(key=...).",
        )
    wanted = definition(spec, layout)
    if content["definition"] != wanted:
        raise DefinitionChangedError(
            f"state {spec.name!r} of topology {spec.topology!r} in {where} was made as {content['definition']}, "
            f"and now it should be {wanted}",
            "Give the state a new name, or another key.",
        )
