"""Fields of a FileSpout with values from the paths of files: ``day`` of ``day=2026-01-31/a.csv``, and the file's name.

Hive, Spark and pyarrow write such folders, with percent escapes, and ``__HIVE_DEFAULT_PARTITION__`` for null. The whole
path counts, as the spout and the ledger know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_trident.contracts.spout import require_simple_types
from airflow_trident.errors import ConfigurationError, DamagedInputError
from airflow_trident.protocol.file_partitions import FILE
from airflow_trident.spouts.files.listing import plain_parts, plain_text_of
from airflow_trident.types import FieldSpec, Schema, names_of, parse_declared, require_distinct, split_spec

if TYPE_CHECKING:
    import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"
_CURE = "Deliver the file to a folder that says it; or change partition_fields."

PathValues = tuple[tuple[str, str | None], ...]
"""Field -> its value as text."""


@dataclass(frozen=True)
class PathFields:
    """`schema`: the fields; none in most spouts."""

    schema: Schema = ()

    @classmethod
    def of(cls, spec: FieldSpec, content: Schema, path: str, *, recursive: bool) -> PathFields:
        """
        :param spec: as the user declares them; only FILE needs no type.
        :param content: the fields that the files contain.
        :raises FieldError: a field has no type, or is in the content.
        :raises ConfigurationError: no file of the path can have such a folder, or the type has no text.
        """
        schema = parse_declared(spec, ["string" if part.strip() == FILE else None for part in split_spec(spec)])
        require_distinct(names_of((*content, *schema)))
        require_simple_types("the path of a file", schema)
        for field in schema:
            if field.name == FILE and field.type != "string":
                raise ConfigurationError(
                    f"FileSpout with partition_fields: {FILE} is the file's name, and no {field.type}",
                    f'Declare "{FILE} string".',
                )
            if field.name != FILE and not _may_have(path, field.name, recursive):
                raise ConfigurationError(
                    f"FileSpout({path!r}) with the partition field {field.name!r}: no file of this path is in a folder "
                    f"{field.name}=...",
                    f"Name these folders in the path, as in /data/{field.name}=*/*.csv; or read all folders with "
                    "recursive=True.",
                )
        return cls(schema)

    def texts(self, path: str, name: str) -> PathValues:
        """The fields' values as texts, which fit the types.

        :param path: the whole path of the file.
        :param name: its path below the base.
        :raises DamagedInputError: the path has no value of a field, several ones, or one of another type.
        """
        values = tuple((field.name, self._text(field.name, path, name)) for field in self.schema)
        self.scalars(path, values)
        return values

    def scalars(self, path: str, values: PathValues) -> list[pa.Scalar]:
        """:raises DamagedInputError: a value is of another type."""
        import pyarrow as pa

        from airflow_trident.io.values import UnfitValueError
        from airflow_trident.spouts.files.columns import from_text

        scalars, texts = [], dict(values)
        for field in self.schema:
            try:
                scalars.append(from_text(pa.array([texts[field.name]], pa.string()), field.type)[0])
            except UnfitValueError as error:
                raise DamagedInputError(
                    f"the path of the file {path!r} has {field.name}={error.value}, where {field.type} is declared",
                    _CURE,
                ) from error
        return scalars

    def added(self, batch: pa.RecordBatch, scalars: Sequence[pa.Scalar]) -> pa.RecordBatch:
        """The rows with these fields behind the others."""
        import pyarrow as pa

        from airflow_trident.io.arrow import arrow_schema

        columns = [pa.repeat(scalar, batch.num_rows) for scalar in scalars]
        schema = pa.schema([*batch.schema, *arrow_schema(self.schema)])
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)

    def _text(self, field: str, path: str, name: str) -> str | None:
        begin = f"{field}="
        if field == FILE:
            return _as_text(name, path)
        texts = {folder.removeprefix(begin) for folder in path.split("/")[:-1] if folder.startswith(begin)}
        if len(texts) != 1:
            problem = f"is in {'several folders' if texts else 'no folder'} {begin}VALUE"
            raise DamagedInputError(f"the file {path!r} {problem}", _CURE)
        text = texts.pop()
        return None if text == _NULL else _as_text(text, path, escaped=True)


def _as_text(name: str, path: str, *, escaped: bool = False) -> str:
    try:
        text = unquote(name, errors="strict") if escaped else name
        text.encode()
    except UnicodeError as error:
        raise DamagedInputError(f"the path of the file {path!r} is no UTF-8 in {name!r}", _CURE) from error
    return text


def _may_have(path: str, field: str, recursive: bool) -> bool:
    """May a file of this path be in a folder of the field?"""
    if recursive or not (path.startswith("/") or "://" in path):
        return True
    return any(_may_be(part, f"{field}=") for part in _folders(path.rstrip("/").split("/")))


def _folders(parts: Sequence[str]) -> Sequence[str]:
    """The parts that may stand for folders: a last one with a wildcard stands for files."""
    return parts[:-1] if plain_parts(parts[-1:]) == 0 and parts[-1] != "**" else parts


def _may_be(part: str, begin: str) -> bool:
    if plain_parts([part]):
        return part.startswith(begin)
    plain = plain_text_of(part)
    return plain.startswith(begin) or begin.startswith(plain)
