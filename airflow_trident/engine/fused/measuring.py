"""Measures the rules of a check node over the frames of a pass.

Each pass over a partition gives numbers that can be merged: in any order, and from any partitions, the result is the
same. So sums are exact, also those of real numbers, and different values are compared as such.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.fused.arrow_expressions import ArrowExpression
from airflow_trident.engine.fused.frames import Frame
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import arrow_type
from airflow_trident.operations.aggregators import real_of
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import Expression
from airflow_trident.operations.rules import BatchCheck, Expectation, Measure, Rule, written
from airflow_trident.operations.user_code import Border
from airflow_trident.plan.nodes import CheckNode
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Json, Schema, select

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MOST_DISTINCT = 20_000_000
"""So many different values of a column may be compared: they are in the driver's memory."""
_EXACT_ROWS = 1 << 20
"""So many real numbers are added at once without a rounding."""
_MANTISSA, _HALF = 53, 27
_DIGITS = 100


@dataclass(kw_only=True)
class Tally:
    """The numbers of one rule. `rows`: all that count; `hits`: rows that break an expectation, nulls, or values that
    are there. `total`: the exact sum of finite values; `odd`: how many are NaN, inf and -inf. `extreme`: the smallest
    or largest value."""

    rule: Rule
    type: str = ""
    rows: int = 0
    hits: int = 0
    total: Fraction = Fraction(0)
    odd: tuple[int, int, int] = (0, 0, 0)
    extreme: Any = None
    distinct: list[pa.Array] = field(default_factory=list)

    @classmethod
    def of(cls, rule: Rule, schema: Schema) -> Tally:
        column = rule.column if isinstance(rule, BatchCheck) else None
        return cls(rule=rule, type="" if column is None else select(schema, [column], rule.name)[0].type)

    def merge(self, other: Tally) -> None:
        self.rows += other.rows
        self.hits += other.hits
        self.total += other.total
        self.odd = tuple(map(sum, zip(self.odd, other.odd, strict=True)))  # type: ignore[assignment]
        self._take_extreme(other.extreme)
        self.distinct += other.distinct

    def add(self, rows: int, column: pa.Array | None) -> None:
        """Rows that count, of a check. `column`: their values."""
        self.rows += rows
        if column is None:
            return
        assert isinstance(self.rule, BatchCheck)
        what = self.rule.what
        if what in (Measure.NULL_COUNT, Measure.NULL_RATIO):
            self.hits += column.null_count
            return
        values = column.drop_null()
        self.hits += len(values)
        if not len(values):
            return
        if what.is_distinct:
            self._add_distinct(values)
        elif what in (Measure.MIN, Measure.MAX):
            self._take_extreme(_extreme(values, what, self.type))
        else:
            self._add_sum(values)

    def _add_distinct(self, values: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.type in REAL_TYPES:
            values = pc.add(values, pa.scalar(0, values.type))  # one zero
        self.distinct.append(pc.unique(values))
        if len(self.distinct) > 64:
            self.distinct = [self._different()]

    def _different(self) -> pa.Array:
        """Each different value once, in order: equal rows give equal bytes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.distinct:
            return pa.array([], arrow_type(self.type))
        values = pc.unique(pa.chunked_array(self.distinct))
        if len(values) > MOST_DISTINCT:
            assert isinstance(self.rule, BatchCheck)
            raise ConfigurationError(
                f"check {self.rule.name!r}: {self.rule.measured} has more than {MOST_DISTINCT:,} different values",
                f"Count in the plan instead: group_by({self.rule.column!r}).aggregate(Count(), 'n'), and expect that "
                "n is 1.",
            )
        return values.take(pc.array_sort_indices(values))

    def _add_sum(self, values: pa.Array) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.type in WHOLE_TYPES:
            whole = values.cast(pa.int64()).to_numpy()
            for part in _pieces(whole):
                self.total += (int((part >> 32).sum()) << 32) + int((part & 0xFFFFFFFF).sum())
        elif self.type in REAL_TYPES:
            for part in _pieces(values.cast(pa.float64()).to_numpy()):
                finite = part[np.isfinite(part)]
                self.total += exact_sum(finite)
                odd = (int(np.isnan(part).sum()), int((part == np.inf).sum()), int((part == -np.inf).sum()))
                self.odd = tuple(map(sum, zip(self.odd, odd, strict=True)))  # type: ignore[assignment]
        else:
            self.total += Fraction(pc.sum(values.cast(pa.decimal256(76, values.type.scale))).as_py())

    def _take_extreme(self, value: Any) -> None:
        if value is None or self.extreme is None:
            self.extreme = value if self.extreme is None else self.extreme
            return
        assert isinstance(self.rule, BatchCheck)
        # NaN is above every other number, as in Spark
        keys = [(isinstance(one, float) and one != one, one) for one in (self.extreme, value)]
        larger = keys[1][0] > keys[0][0] if keys[0][0] or keys[1][0] else value > self.extreme
        self.extreme = value if larger == (self.rule.what is Measure.MAX) else self.extreme

    # ---- the result --------------------------------------------------------------------------------------------

    def number(self) -> dict[str, Json]:
        """The value, and the rows that it is of, as manifests and records have it. Without content of rows."""
        return {"rows": self.rows, "value": written(self._value())}

    def _value(self) -> Any:
        if isinstance(self.rule, Expectation):
            return self.hits
        assert isinstance(self.rule, BatchCheck)
        match self.rule.what:
            case Measure.ROW_COUNT:
                return self.rows
            case Measure.NULL_COUNT:
                return self.hits
            case Measure.NULL_RATIO:
                return self.hits / self.rows if self.rows else None
            case Measure.DISTINCT_COUNT:
                return len(self._different())
            case Measure.UNIQUE_VIOLATIONS:
                return self.hits - len(self._different())
            case Measure.MIN | Measure.MAX:
                return self.extreme
            case Measure.SUM:
                return self._sum(1)
        return self._sum(self.hits)

    def _sum(self, by: int) -> Any:
        """The sum, divided by a number; None: of no values."""
        if not self.hits:
            return None
        nan, plus, minus = self.odd
        if nan or (plus and minus):
            return float("nan")
        if plus or minus:
            return float("inf" if plus else "-inf")
        exact = self.total / by
        if exact.denominator == 1 and self.type in WHOLE_TYPES:
            return int(exact)
        if by == 1 and self.type not in REAL_TYPES:
            return decimal_of(exact)
        return real_of(exact)

    # ---- on the way from a worker ------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Json]:
        return {
            "rows": self.rows,
            "hits": self.hits,
            "total": str(self.total),
            "odd": list(self.odd),
            "extreme": None if self.extreme is None else repr_of(self.extreme),
        }

    def values(self) -> bytes:
        """The different values as Arrow's bytes; empty if they are not needed."""
        import pyarrow as pa

        if not isinstance(self.rule, BatchCheck) or not self.rule.what.is_distinct:
            return b""
        buffer = io.BytesIO()
        batch = pa.RecordBatch.from_arrays([self._different()], names=["value"])
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
        return buffer.getvalue()

    def merge_written(self, numbers: Mapping[str, Any], values: bytes) -> None:
        """Merge what another process wrote by :meth:`as_json` and :meth:`values`."""
        import pyarrow as pa

        distinct = []
        if values:
            distinct = [chunk for chunk in pa.ipc.open_stream(values).read_all().column(0).chunks if len(chunk)]
        extreme = numbers["extreme"]
        self.merge(
            Tally(
                rule=self.rule,
                type=self.type,
                rows=numbers["rows"],
                hits=numbers["hits"],
                total=Fraction(numbers["total"]),
                odd=tuple(numbers["odd"]),
                extreme=None if extreme is None else value_of(extreme, self.type),
                distinct=distinct,
            )
        )


def decimal_of(exact: Fraction) -> Decimal:
    """A sum of decimals, with all its digits."""
    with localcontext(prec=_DIGITS):
        return Decimal(exact.numerator) / Decimal(exact.denominator)


def repr_of(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def value_of(text: str, type_text: str) -> Any:
    """The value of a type that :func:`repr_of` wrote."""
    if type_text in WHOLE_TYPES:
        return int(text)
    if type_text in REAL_TYPES:
        return float(text)
    if type_text == "date":
        return datetime.date.fromisoformat(text)
    return datetime.datetime.fromisoformat(text) if type_text == "timestamp" else Decimal(text)


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(values), _EXACT_ROWS):
        yield values[begin : begin + _EXACT_ROWS]


def exact_sum(values: np.ndarray) -> Fraction:
    """The sum of finite doubles without any rounding. At most `_EXACT_ROWS`."""
    import numpy as np

    if not len(values):
        return Fraction(0)
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, _MANTISSA).astype(np.int64)
    least = int(exponents.min())
    places = exponents - least
    # halves of mantissas: their sums are whole numbers that a double holds exactly
    highs = np.bincount(places, weights=(whole >> _HALF).astype(np.float64))
    lows = np.bincount(places, weights=(whole & ((1 << _HALF) - 1)).astype(np.float64))
    total = 0
    for place in np.flatnonzero((highs != 0) | (lows != 0)).tolist():
        total += ((int(highs[place]) << _HALF) + int(lows[place])) << place
    return total * Fraction(2) ** (least - _MANTISSA)


def _extreme(values: pa.Array, what: Measure, type_text: str) -> Any:
    """The smallest or largest of some values, none of them null."""
    import pyarrow.compute as pc

    if type_text in REAL_TYPES:
        numbers = values.filter(pc.invert(pc.is_nan(values)))
        if len(numbers) < len(values) and (what is Measure.MAX or not len(numbers)):
            return float("nan")
        values = numbers
    return (pc.min if what is Measure.MIN else pc.max)(values).as_py()


@dataclass(frozen=True)
class _Truth:
    """Which rows of a frame an expression is true for; null is not true."""

    expression: Expression
    by_arrow: ArrowExpression | None
    call: Any
    border: Border

    @classmethod
    def of(cls, expression: Expression, node: CheckNode, before: Schema, txid: int) -> _Truth:
        border = Border(node.name, str(expression), expression.reads, txid)
        return cls(expression, ArrowExpression.of(expression, before, "boolean"), bind(expression, before), border)

    def mask(self, frame: Frame) -> pa.Array:
        """:raises UserCodeError: a row has no value of the expression."""
        import pyarrow as pa

        mask = None if self.by_arrow is None else self.by_arrow.values(frame)
        if mask is None:
            rows = frame.tuples(self.expression.reads)
            mask = pa.array([self.border.one(self.call, values) for values in rows], pa.bool_())
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        return mask.fill_null(False)


class Gauge:
    """Measures the rules of one node over some rows of one transaction."""

    def __init__(self, node: CheckNode, before: Schema, txid: int) -> None:
        self.node = node
        self.tallies = [Tally.of(rule, before) for rule in node.rules]
        self._types = {field.name: field.type for field in before if field.name in node.reads}
        self._truths = {
            rule.name: _Truth.of(expression, node, before, txid)
            for rule in node.rules
            if (expression := rule.condition if isinstance(rule, Expectation) else _only(rule)) is not None
        }

    def add(self, frame: Frame) -> None:
        """:raises UserCodeError: an expression of a rule has no value for a row."""
        arrays = {name: frame.arrow(name, type_text) for name, type_text in self._types.items()}
        converted = frame.with_columns(arrays)
        for tally in self.tallies:
            truth = self._truths.get(tally.rule.name)
            mask = None if truth is None else truth.mask(converted)
            if isinstance(tally.rule, Expectation):
                assert mask is not None
                tally.rows += frame.rows
                tally.hits += frame.rows - mask.true_count
                continue
            assert isinstance(tally.rule, BatchCheck)
            column = arrays[tally.rule.column] if tally.rule.column is not None else None
            if mask is None:
                tally.add(frame.rows, column)
            else:
                tally.add(mask.true_count, None if column is None else column.filter(mask))


def _only(rule: Rule) -> Expression | None:
    return rule.only if isinstance(rule, BatchCheck) else None


class Gauges:
    """The gauges of all check nodes of a pass, for one transaction.

    :param member: the position of the transaction in its group.
    """

    def __init__(self, member: int = 0) -> None:
        self.member = member
        self.gauges: list[Gauge] = []

    def gauge(self, node: CheckNode, before: Schema, txid: int) -> Gauge:
        made = Gauge(node, before, txid)
        self.gauges.append(made)
        return made


class Numbers:
    """The numbers of all rules of a plan, of each transaction of a pass.

    :param members: how many transactions.
    """

    def __init__(self, nodes: Iterable[CheckNode], members: int = 1) -> None:
        self._tallies = [
            {rule.name: Tally.of(rule, node.schema) for node in nodes_ for rule in node.rules}
            for nodes_ in [list(nodes)] * members
        ]

    def merge(self, gauges: Gauges) -> None:
        for gauge in gauges.gauges:
            for tally in gauge.tallies:
                self._tallies[gauges.member][tally.rule.name].merge(tally)

    def merge_note(self, note: bytes) -> None:
        """:param note: as :func:`note_of` made it."""
        import pyarrow as pa

        for row in pa.ipc.open_stream(note).read_all().to_pylist():
            tally = self._tallies[row["member"]].get(row["rule"])
            if tally is not None:
                tally.merge_written(json.loads(row["numbers"]), row["values"])

    def of_each(self) -> list[dict[str, Json]]:
        """For each transaction: rule -> its number."""
        return [{name: tally.number() for name, tally in tallies.items()} for tallies in self._tallies]


def note_of(measured: Sequence[Gauges]) -> bytes:
    """The numbers of a worker as bytes. Equal rows in any order give equal bytes."""
    import pyarrow as pa

    merged: dict[tuple[int, str], Tally] = {}
    for gauges in measured:
        for gauge in gauges.gauges:
            for tally in gauge.tallies:
                key = (gauges.member, tally.rule.name)
                if key in merged:
                    merged[key].merge(tally)
                else:
                    merged[key] = tally
    rows = [
        {
            "member": member,
            "rule": rule,
            "numbers": json.dumps(tally.as_json(), sort_keys=True),
            "values": tally.values(),
        }
        for (member, rule), tally in sorted(merged.items(), key=lambda item: item[0])
    ]
    schema = pa.schema({"member": pa.int32(), "rule": pa.string(), "numbers": pa.string(), "values": pa.large_binary()})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as stream:
        stream.write_table(pa.Table.from_pylist(rows, schema))
    return buffer.getvalue()
