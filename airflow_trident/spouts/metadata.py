"""Reads the metadata of transactions. It has no version: what a spout wrote is read for ever; another shape means
another spout."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from airflow_trident.contracts.spout import not_metadata_of
from airflow_trident.types import Json

T = TypeVar("T", bound=msgspec.Struct)


def read_back(kind: type[T], metadata: Json, spout: str) -> T:
    """
    :param spout: whose metadata it must be: ``a SpooledSpout``.
    :raises SourceChangedError: it is not.
    """
    try:
        return msgspec.convert(metadata, kind, strict=True, str_keys=True)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise not_metadata_of(f"{spout} ({str(error).replace('`', '')})", metadata) from error


def as_json(metadata: msgspec.Struct) -> Json:
    """The other way round."""
    written: Json = msgspec.to_builtins(metadata)
    return written


class NumberRange(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """Numbers `begin` up to `end`, which is not in it."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.begin > self.end:
            raise ValueError(f"{self.begin} to {self.end} is no range")
