"""Reads the metadata of transactions. Metadata have no version, and stay readable. Metadata of another shape belong to
another spout."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from airflow_trident.contracts.spout import not_metadata_of
from airflow_trident.types import Json

T = TypeVar("T", bound=msgspec.Struct)


def read_back(kind: type[T], metadata: Json, spout: str) -> T:
    """Metadata as an instance of `kind`.

    :param spout: the kind of spout that must have written it: ``a SpooledSpout``.
    :raises SourceChangedError: another kind of spout wrote it.
    """
    try:
        return msgspec.convert(metadata, kind, strict=True, str_keys=True)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise not_metadata_of(f"{spout} ({str(error).replace('`', '')})", metadata) from error


def as_json(metadata: msgspec.Struct) -> Json:
    """The reverse of :func:`read_back`."""
    written: Json = msgspec.to_builtins(metadata)
    return written


class NumberRange(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """The numbers from `begin` to below `end`."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.begin > self.end:
            raise ValueError(f"{self.begin} to {self.end} is no range")
