"""Reads files of JSON: one object in each line, whatever its size.

Arrow's parser takes several values in a line, and ends the process if one of them is null. So it sees only lines that
are proven to be one object each: a line begins with ``{`` and ends with ``}``, and behind each ``}`` comes what goes on
with an object. Other lines are looked at by Python's parser, which also names line and field of what is refused.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.values import is_unicode
from airflow_trident.operations.expressions import kind
from airflow_trident.spouts.files.columns import reading_type
from airflow_trident.spouts.files.contents import MENDED
from airflow_trident.spouts.files.json_maps import Real, decimal_in_json, decoder, doubled, for_arrow
from airflow_trident.spouts.files.read_options import FilePart, ReadOptions
from airflow_trident.spouts.files.reading import advice_on_bytes, chunks_of_lines, damage, parsed_batch
from airflow_trident.types import INTERVAL, REAL_TYPES, WHOLE_TYPES, has_reals, members

if TYPE_CHECKING:
    import pyarrow as pa

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r"
_GOES_ON = re.compile(rb"\}(?!\n)[ \t]*+(?:[^,}\] \t\r\n]|\r[^\n])")
"""Something behind an object that is no part of one around it, or a text that looks so."""
_MAX_DEPTH = 1000
_FLOAT_LIMIT = 2.0**128 - 2.0**103
"""From here on the nearest 32-bit number is infinite."""
_CURE = "Each line holds one JSON object; `jq -c .` writes files so, and `jq -c '.[]'` what stands in an array."


def read_json(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """As `formats.read_part`."""
    behind = f" behind byte {part.begin}" if part.begin else ""
    lines = rows = 0
    for at, chunk in chunks_of_lines(part, file):
        plain = chunk if at else chunk.removeprefix(_BYTE_ORDER_MARK)
        with damage(part.path):
            batch = _JsonLines(reading, part.path, plain, lines, behind).batch() if plain else None
        if batch is not None:
            yield parsed_batch(reading, batch, f"the file {part.path!r}{behind}", rows)
            rows += batch.num_rows
        lines += chunk.count(b"\n")


@dataclass(frozen=True)
class _JsonLines:
    """A chunk of whole lines. `before`: how many lines of its part are before it."""

    reading: ReadOptions
    path: str
    chunk: bytes
    before: int
    behind: str

    def batch(self) -> pa.RecordBatch | None:
        """What the parser gives for the declared fields; None: nothing is there.

        :raises DamagedInputError: a line is not one object of the declared fields.
        """
        import pyarrow as pa

        try:
            rows = self._require_objects()
            if not rows:
                return None
            batch = self._parsed()
            if batch.num_rows != rows:
                raise ValueError(f"{rows} lines hold {batch.num_rows} values")
        except (pa.ArrowException, ValueError, ArithmeticError, RecursionError) as error:
            self._explain()
            raise self._refused(None, str(error)) from error
        if any(has_reals(field.type) and _has_infinity(batch.column(field.name)) for field in self.reading.schema):
            self._explain()  # the parser makes infinity of what is too large
        return batch

    # ---- the proof -----------------------------------------------------------------------------------------------

    def _require_objects(self) -> int:
        """The number of lines that hold an object.

        :raises ValueError, RecursionError: a line holds anything else.
        """
        if self._is_plain():
            return self.chunk.count(b"\n") + (not self.chunk.endswith(b"\n"))
        decode = json.JSONDecoder().decode
        rows = 0
        for line in self.chunk.split(b"\n"):
            if text := line.strip(_BLANK):
                if not isinstance(decode(text.decode(errors="surrogateescape")), dict):
                    raise ValueError("a line holds no object")
                rows += 1
        return rows

    def _is_plain(self) -> bool:
        """Is each line one object, without a look at each line? False: nobody knows."""
        import numpy as np

        data = np.frombuffer(self.chunk, dtype=np.uint8)
        ends = np.flatnonzero(data == 10)
        begins = np.concatenate([np.zeros(1, dtype=ends.dtype), ends + 1])
        if not self.chunk.endswith(b"\n"):
            ends = np.append(ends, len(data))
        begins = begins[: len(ends)]
        if not bool((data[begins] == ord("{")).all()) or bool((ends < begins + 2).any()):
            return False
        last = data[ends - 1]
        closed = (last == ord("}")) | ((last == 13) & (data[ends - 2] == ord("}")))
        return bool(closed.all()) and _GOES_ON.search(self.chunk) is None and not self._is_deep(begins, data)

    def _is_deep(self, begins: Any, data: Any) -> bool:
        import numpy as np

        opened = np.flatnonzero((data == ord("{")) | (data == ord("[")))
        before = np.searchsorted(opened, begins)
        return bool(np.diff(np.append(before, len(opened))).max(initial=0) > _MAX_DEPTH)

    # ---- the values ----------------------------------------------------------------------------------------------

    def _parsed(self) -> pa.RecordBatch:
        """
        :raises pyarrow.ArrowException, ValueError, ArithmeticError: it does not fit the declared fields.
        """
        import pyarrow as pa
        import pyarrow.json as pj

        schema = self.reading.schema
        lines = for_arrow(self.chunk, schema, ignore_extra=self.reading.ignore_extra)
        table = pj.read_json(
            io.BytesIO(lines),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(field.name, reading_type(field.type, "json")) for field in schema]),
                unexpected_field_behavior="ignore" if self.reading.ignore_extra else "error",
            ),
        )
        table.validate(full=True)  # the parser does not reject broken UTF-8
        return table.combine_chunks().to_batches()[0]

    # ---- what is wrong -------------------------------------------------------------------------------------------

    def _explain(self) -> None:
        """
        :raises DamagedInputError: a line is not one object of the declared fields; it names the first one.
        """
        decode, on_bytes = decoder(), "surrogateescape" if self.reading.ignore_extra else "strict"
        struct = f"struct<{','.join(f'{field.name}:{field.type}' for field in self.reading.schema)}>"
        for number, line in enumerate(self.chunk.split(b"\n")):
            if not (plain := line.strip(_BLANK)):
                continue
            try:
                record = decode(plain.decode(errors=on_bytes))
            except UnicodeDecodeError as error:
                raise self._refused(number, str(error), advice_on_bytes(line)[0]) from error
            except json.JSONDecodeError as error:
                raise self._refused(number, f"{error.msg} at character {error.pos + 1}") from error
            except (ValueError, RecursionError) as error:
                raise self._refused(number, str(error)) from error
            if not isinstance(record, dict):
                raise self._refused(number, f"the line is {_shown(record)} and no object")
            if why := doubled(record, self.reading.schema):
                raise self._refused(number, why)
            if why := _misfit(record, struct, "", self.reading.ignore_extra):
                raise self._refused(number, why, "Declare the fields and types that it has.")

    def _refused(self, line: int | None, problem: str, cure: str = _CURE) -> DamagedInputError:
        count = self.chunk.count(b"\n") + (not self.chunk.endswith(b"\n"))
        location = (
            f"in the lines {self.before + 1} to {self.before + count}"
            if line is None
            else f"in line {self.before + line + 1}"
        )
        return DamagedInputError(
            f"the file {self.path!r} cannot be read {location}{self.behind}: {problem}", f"{cure} {MENDED}"
        )


def _has_infinity(array: pa.Array) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_struct(array.type):
        return any(_has_infinity(array.field(place)) for place in range(array.type.num_fields))
    return pa.types.is_list(array.type) and _has_infinity(array.values)


def _misfit(value: Any, type_text: str, path: str, ignore_extra: bool) -> str:
    """Why a value of JSON is none of the type; empty: the parser would take it."""
    if value is None:
        return ""
    shape = kind(type_text)
    parts = {member.name: member.type for member in members(type_text)}
    inner: list[tuple[str, Any, str]] = []
    if shape == "struct" and isinstance(value, dict):
        extra = [name for name in value if name not in parts]
        if extra and not ignore_extra:
            return (
                f"the field {_joined(path, extra[0])!r} is not declared; "
                'extra_columns="ignore" leaves out what is not declared'
            )
        inner = [(_joined(path, name), part, parts[name]) for name, part in value.items() if name in parts]
    elif shape == "map" and isinstance(value, dict):
        inner = [(_joined(path, name), part, parts["value"]) for name, part in value.items()]
    elif shape == "array" and isinstance(value, list):
        inner = [(f"{path}[{place}]", part, parts["element"]) for place, part in enumerate(value)]
    elif not _is_of(value, type_text):
        return f"the field {path!r} holds {_shown(value)}, and {type_text} is declared"
    return next((why for name, part, of in inner if (why := _misfit(part, of, name, ignore_extra))), "")


def _is_of(value: Any, type_text: str) -> bool:
    if type_text in WHOLE_TYPES:
        limit = WHOLE_TYPES[type_text]
        return type(value) is int and -limit <= value < limit
    if type_text == INTERVAL:
        return type(value) is int
    if type_text == "boolean":
        return isinstance(value, bool)
    if type_text in REAL_TYPES:
        return type(value) in (int, float, Real) and not _is_beyond(value, type_text)
    if kind(type_text) == "decimal":
        try:
            decimal_in_json(value, type_text)
        except (ValueError, ArithmeticError):
            return False
        return True
    return isinstance(value, str) and is_unicode(value)


def _is_beyond(value: float, type_text: str) -> bool:
    """Is it a finite number that becomes infinite?"""
    try:
        return math.isfinite(value) and type_text == "float" and abs(value) >= _FLOAT_LIMIT
    except OverflowError:  # a whole number beyond a double
        return True


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    return (value.text if isinstance(value, Real) else json.dumps(value, ensure_ascii=False, default=str))[:80]
