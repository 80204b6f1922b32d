"""The border of declared types: a value is what it was in its field, at every depth, or an error names it."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_trident.errors import DamagedInputError, UserCodeError
from airflow_trident.io.arrow import (
    Calendar,
    StructRule,
    arrow_type,
    fitted,
    fitted_batch,
    python_values,
    rows_to_table,
    table_to_rows,
)
from airflow_trident.io.places import place_at
from airflow_trident.io.values import UnfitValueError, coerce_column
from airflow_trident.spouts.files.columns import from_text
from airflow_trident.staging.area import write_part
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import Field, members, parse_declared
from tests.generated.types import VALUES

# ---- numbers -----------------------------------------------------------------------------------------------------

NUMBERS = {
    **{str(kind): kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())},
    **{str(kind): kind for kind in (pa.float16(), pa.float32(), pa.float64())},
    **{str(kind): kind for kind in (pa.decimal128(12, 3), pa.decimal128(38, 0), pa.decimal256(60, 20))},
}
DECLARED = [
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "decimal(10,2)",
    "decimal(38,0)",
    "decimal(38,20)",
    "decimal(38,33)",
]
WHOLE = st.one_of(st.integers(-300, 300), st.integers(-(2**63), 2**64 - 1), st.sampled_from([2**53, 2**53 + 1, 2**24]))
REAL = st.one_of(
    st.floats(), st.floats(width=32), st.integers(-300, 300).map(float), st.sampled_from([0.5, 1.005, 0.126, 19.99])
)


def column_of(kind: pa.DataType, value: int | float) -> pa.Array | None:
    """A column with the value, behind another one; None: the type does not hold it."""
    try:
        if pa.types.is_decimal(kind):
            return pa.array([None, Decimal(repr(value) if isinstance(value, float) else value)], kind)
        plain = value if pa.types.is_floating(kind) else int(value)
        return pa.array([None, plain], kind)
    except (pa.ArrowException, ValueError, OverflowError, ArithmeticError, TypeError):
        return None


def exact(value: Any) -> Fraction | float:
    """The number. A real number that is no fraction is itself."""
    return value if isinstance(value, float) and not math.isfinite(value) else Fraction(value)


def is_same(before: Any, after: Any) -> bool:
    """The same number. A real one is a decimal if that is its shortest text."""
    if {type(before), type(after)} in ({float, Decimal}, {np.float32, Decimal}):
        return Decimal(str(before)) == Decimal(str(after))
    before, after = (float(value) if isinstance(value, np.float32) else value for value in (before, after))
    return exact(before) == exact(after) or (before != before and after != after)


def must_fit(value: Any, declared: str) -> bool:
    """Is there no doubt that the declared type holds the value?"""
    if isinstance(value, float) and not math.isfinite(value):
        return declared in ("float", "double")
    number = Fraction(value)
    if declared in ("float", "double"):
        return number.denominator == 1 and abs(number) <= 2**24
    if declared.startswith("decimal"):
        return number.denominator == 1 and abs(number) < {"decimal(38,33)": 10**5}.get(declared, 10**8)
    return number.denominator == 1 and abs(number) < 2**7


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(NUMBERS)), st.sampled_from(DECLARED), st.one_of(WHOLE, REAL))
def test_a_number_is_the_same_in_its_field_or_is_refused(kind: str, declared: str, value: int | float) -> None:
    column = column_of(NUMBERS[kind], value)
    assume(column is not None)
    assert column is not None
    before, unfit = column[1].as_py(), None
    try:
        result = fitted(column, declared)
    except UnfitValueError as error:
        unfit = error
    if unfit is None:
        assert result.type == arrow_type(declared)
        assert result[0].as_py() is None
        assert is_same(before, np.float32(result[1].as_py()) if declared == "float" else result[1].as_py())
    else:
        assert not must_fit(before, declared)
        assert unfit.position == 1
        assert f"where {declared} is declared" in str(unfit)


@pytest.mark.parametrize(
    ("values", "declared", "said"),
    [
        ([1.5, 1.005], "decimal(10,2)", "1.005"),
        ([0.0, 1e300], "float", r"row 12 holds 1e\+300"), ([1.0, 0.1], "float", "0.1"),
        ([5], "boolean", "values of type int64"), ([True], "long", "values of type bool"),
        ([Decimal("12345678901234567891")], "double", "12345678901234567891"), (["1"], "long", "values of type string"),
        ([[1], [2]], "array<boolean>", r"values of type int64 in \[\]"),
        ([[1], None, [2, 300]], "array<byte>", r"300 in \[\]"),
        ([{"a": 1, "b2": 2}], "struct<a:long,b:long>", "it lacks the member 'b'"),
        ([{"a": 1, "B": 2}], "struct<a:long,b:long>", "it lacks the member 'b'"),
        ([{"a": 1, "b": 2, "c": 3}], "struct<a:long,b:long>", "it has the undeclared member 'c'"),
        ([None, {"xs": [{"n": 1}, {"n": 300}]}], "struct<xs:array<struct<n:byte>>>", r"300 in \.xs\[\]\.n"),
        ([{"xs": [{"n": 1, "m": 2}]}], "struct<xs:array<struct<n:long>>>", r"in \.xs\[\].*the undeclared member 'm'"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_fit_is_refused_with_its_value_and_place(
    values: list[Any], declared: str, said: str
) -> None:
    with pytest.raises(DamagedInputError, match=rf"^files/a: the field 'v' .*{said}"):
        fitted_batch(pa.record_batch({"v": pa.array(values)}), (Field("v", declared),), "files/a", first_row=10)


def test_members_may_be_missing_or_more_only_where_the_source_says_so() -> None:
    older, wider = pa.array([{"a": 1}, None]), pa.array([{"a": 1, "b": 2, "c": 3}])
    declared = "struct<a:long,b:long>"
    assert fitted(older, declared, StructRule.MAY_LACK).to_pylist() == [{"a": 1, "b": None}, None]
    assert fitted(wider, declared, StructRule.MAY_HAVE_MORE).to_pylist() == [{"a": 1, "b": 2}]
    for column, rule in ((older, StructRule.MAY_HAVE_MORE), (wider, StructRule.MAY_LACK)):
        with pytest.raises(UnfitValueError, match="member"):
            fitted(column, declared, rule)


def test_a_map_with_a_key_twice_is_refused_at_every_depth() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    maps = pa.array([[("a", 1), ("b", 2)], None, [("a", 1), ("a", 2)]], kind)
    with pytest.raises(UnfitValueError, match="it has a key twice") as caught:
        fitted(maps, "map<string,long>")
    assert caught.value.position == 2
    nested = pa.array([[[("a", 1)], [("a", 1), ("a", 2)]]], pa.list_(kind))
    with pytest.raises(UnfitValueError, match=r"in \[\].*it has a key twice"):
        fitted(nested, "array<map<string,long>>")
    assert fitted(maps.slice(0, 2), "map<string,byte>").to_pylist() == [[("a", 1), ("b", 2)], None]


# ---- days and moments --------------------------------------------------------------------------------------------

YEARS = {"date": (-719_162, 2_932_896), "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999)}
RAW = {"date": (pa.int32(), pa.date32()), "timestamp": (pa.int64(), pa.timestamp("us", tz="UTC"))}


@pytest.mark.parametrize("declared", ["date", "timestamp", "array<date>", "map<int,timestamp>", "struct<a:timestamp>"])
def test_days_and_moments_are_within_the_years_that_python_has(declared: str) -> None:
    simple = "date" if "date" in declared else "timestamp"
    number, kind = RAW[simple]

    def column(value: int) -> pa.Array:
        plain = pa.array([value], number).cast(kind)
        if declared.startswith("array"):
            return pa.ListArray.from_arrays([0, 1], plain)
        if declared.startswith("map"):
            return pa.MapArray.from_arrays([0, 1], pa.array([1], pa.int32()), plain)
        return pa.StructArray.from_arrays([plain], names=["a"]) if declared.startswith("struct") else plain

    for limit, outside in zip(YEARS[simple], (-1, 1), strict=True):
        assert len(python_values(fitted(column(limit), declared))) == 1
        with pytest.raises(UnfitValueError, match="outside of the years 1 to 9999"):
            fitted(column(limit + outside), declared)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_of_every_unit_are_those_of_microseconds_or_refused(unit: str) -> None:
    moment = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    for zone in (None, "Europe/Berlin"):
        column = pa.array([moment if zone else moment.replace(tzinfo=None)], pa.timestamp(unit, tz=zone))
        assert fitted(column, "timestamp").to_pylist() == [moment]
    if unit != "ns":
        with pytest.raises(UnfitValueError):
            fitted(pa.array([2**62], pa.timestamp(unit)), "timestamp")
    else:
        with pytest.raises(UnfitValueError, match="would lose data"):
            fitted(pa.array([1], pa.timestamp("ns")), "timestamp")


def test_days_of_the_hybrid_calendar_are_read_where_the_calendars_agree() -> None:
    days = [datetime.date(1582, 10, 15), None, datetime.date(2020, 1, 1)]
    assert fitted(pa.array(days), "date", calendar=Calendar.HYBRID).to_pylist() == days
    with pytest.raises(UnfitValueError, match=r"Julian calendar.*write the file anew"):
        fitted(pa.array([*days, datetime.date(1001, 1, 7)]), "date", calendar=Calendar.HYBRID)
    old = pa.array([datetime.datetime(1899, 12, 31, tzinfo=datetime.UTC)], pa.timestamp("us", tz="UTC"))
    with pytest.raises(UnfitValueError, match="Julian calendar"):
        fitted(old, "timestamp", calendar=Calendar.HYBRID)


def test_a_day_or_time_that_python_does_not_have_is_shown_as_its_number() -> None:
    for column, declared, value in (
        (pa.array([2**30], pa.int32()).cast(pa.date32()), "date", "1073741824"),
        (pa.array([86_400 * 10**6]).cast(pa.time64("us")), "time", "86400000000"),
        (
            pa.ListArray.from_arrays([0, 1], pa.array([2**30], pa.int32()).cast(pa.date32())),
            "array<date>",
            "1073741824",
        ),
    ):
        with pytest.raises(UnfitValueError, match=rf"{value} \("):
            fitted(column, declared)


# ---- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("long", "+7", 7), ("long", " 8 ", 8), ("long", "007", 7), ("double", "1e3", 1000.0), ("double", "+.5", 0.5),
        ("double", "Infinity", math.inf), ("float", "0.5", 0.5), ("decimal(5,2)", "+1.5", Decimal("1.50")),
        ("time", "12:00:00.0000000", datetime.time(12)), ("decimal(5,2)", "0E-999999999", Decimal("0.00")),
        ("timestamp", "1970-01-01T01:00:00.000001000+01:00", datetime.datetime.fromtimestamp(1e-6, datetime.UTC)),
        ("boolean", "TRUE", True), ("interval day to second", "-1", datetime.timedelta(microseconds=-1)),
    ],
)  # fmt: skip
def test_a_text_is_the_value_that_it_says(declared: str, text: str, value: Any) -> None:
    assert from_text(pa.array([text, None]), declared).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("byte", "0xFF"), ("long", "0x10"), ("long", "1_000"), ("long", "1.0"), ("long", "++7"), ("long", "7-"),
        ("long", ""), ("long", "9223372036854775808"), ("double", "1e400"), ("double", "0x1p3"), ("float", "1e39"),
        ("decimal(10,2)", "100000000"), ("decimal(10,2)", "1.005"),
        ("decimal(10,2)", "8.350923811823268e-222"), ("decimal(10,2)", "1e-999999999"), ("double", "nan(1)"),
        ("time", "12:00:00.0000001"), ("interval day to second", "9223372036854775807"),
        ("boolean", "yes"), ("date", "0000-01-01"),
        ("date", "2023-02-29"), ("timestamp", "0001-01-01T00:00:00+14:00"), ("time", "24:00:00"),
        ("time", "12:00:00+01:00"), ("interval day to second", "1.5"),
    ],
)  # fmt: skip
def test_a_text_that_says_no_value_of_the_type_is_refused(declared: str, text: str) -> None:
    with pytest.raises(UnfitValueError, match=f"where {declared.replace('(', '.').replace(')', '.')} is declared") as e:
        from_text(pa.array([None, text]), declared)
    assert e.value.position == 1


# ---- nested values of every type ---------------------------------------------------------------------------------

_SIMPLE = st.sampled_from([kind for kind in VALUES if "decimal(38" not in kind])
_KEYS = st.sampled_from(["string", "int", "date", "boolean"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map("array<{}>".format),
        st.tuples(_KEYS, inner).map(lambda pair: "map<{},{}>".format(*pair)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: "struct<" + ",".join(f"m{place}:{kind}" for place, kind in enumerate(kinds)) + ">"
        ),
    )


TYPES = st.recursive(_SIMPLE, _wider, max_leaves=4)


def values_of(declared: str) -> st.SearchStrategy[Any]:
    (field,) = parse_declared(f"v {declared}")
    inner = members(field.type)
    if not inner:
        return st.one_of(st.none(), st.sampled_from(VALUES[field.type]))
    if field.type.startswith("array"):
        return st.one_of(st.none(), st.lists(values_of(inner[0].type), max_size=3))
    if field.type.startswith("map"):
        keys = st.sampled_from(VALUES[inner[0].type])
        return st.one_of(st.none(), st.dictionaries(keys, values_of(inner[1].type), max_size=2))
    return st.one_of(st.none(), st.fixed_dictionaries({one.name: values_of(one.type) for one in inner}))


def plain(values: list[Any]) -> str:
    """As text: NaN is NaN there. Arrow has another class for UTC."""
    return repr(values).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


COLUMNS = TYPES.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=4)))


@settings(max_examples=150, deadline=None)
@given(COLUMNS, st.integers(0, 2))
def test_values_that_fit_come_through_unchanged(column: tuple[str, list[Any]], skipped: int) -> None:
    declared, values = column
    field = Field("v", declared)
    table = rows_to_table((field,), [(value,) for value in values])
    assert plain(table_to_rows(table)) == plain([(value,) for value in coerce_column(values, declared)])
    array = table.column(0).combine_chunks()
    wider = pa.concat_arrays([array, array]).slice(skipped)
    assert plain(python_values(fitted(wider, declared))) == plain(python_values(wider))


# ---- what is staged ----------------------------------------------------------------------------------------------


def test_what_a_transform_made_is_looked_at_before_it_is_staged(tmp_path: Any) -> None:
    day = pa.array([1, 2_932_897], pa.int32()).cast(pa.date32())
    slot = Slot(topology="t", incarnation="i", txid=7, attempt=1)
    with pytest.raises(UserCodeError, match=r"state 'sales': the field 'day' of row 2 holds 10000-01-01") as caught:
        write_part(place_at(str(tmp_path)), slot, "sales", pa.table({"day": day}))
    assert caught.value.txid == 7
