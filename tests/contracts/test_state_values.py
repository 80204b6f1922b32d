"""What states hold: values of every type, merged alike by every store, by every kind of aggregator."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.contracts.updater import MapState
from airflow_trident.engine.state_queries import Reading
from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.operations.aggregators import Count, Max, Min, Sum
from airflow_trident.operations.state_functions import MapGet
from airflow_trident.topology.verbs.states import MapPut
from airflow_trident.types import INTERVAL, has_times, names_of, parse_declared
from tests.fixtures.state import Product, appended, apply, batch, combined, content, keep_longest, ticket

# ---- reducers, updaters, states without keys -------------------------------------------------------------------


def test_a_reducer_folds_the_batchs_tuples_into_the_stored_value(factory: StateFactory) -> None:
    spec = appended(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", "x", 1), ("b", "y", 1), ("a", "z", 1)))
        apply(state, ticket(2), batch(spec, ("a", "w", 1)))
        assert content(state) == {("a",): ("xzw",), ("b",): ("y",)}


def test_a_key_may_have_the_name_that_arrow_gives_a_sum(factory: StateFactory) -> None:
    spec = combined(factory, "n_sum string", "n long", Sum())
    with factory.make_state(spec) as state:
        for txid in (1, 2):
            apply(state, ticket(txid), batch(spec, ("a", txid), ("b", 5), ("a", 2)))
        assert content(state) == {("a",): (7,), ("b",): (10,)}


def test_a_key_may_have_the_name_that_arrow_gives_a_last_row(factory: StateFactory) -> None:
    spec = upserts(factory, "_row_max string")
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1, ["x"]), ("b", 2, None)))
        apply(state, ticket(2), batch(spec, ("a", 3, None)))
        assert content(state) == {("a",): (3, None), ("b",): (2, None)}


def longest(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "word string", "line string")
    return replace(spec, updater=keep_longest)


def test_an_updater_sees_what_is_stored_and_what_it_has_put(factory: StateFactory) -> None:
    spec = longest(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", "xx"), ("a", "xxxx"), ("a", "xxx"), ("b", "y"), ("c", "z")))
        assert content(state) == {("a",): ("xxxx",), ("b",): ("y",), ("c",): ("z",)}
        apply(
            state, ticket(2), batch(spec, ("a", "zzz"), ("b", "yy"), ("c", None), ("d", None), ("b", None), ("b", "n"))
        )
        assert content(state) == {("a",): ("xxxx",), ("b",): ("n",)}


def test_a_key_that_user_code_makes_is_the_one_that_its_fields_hold(factory: StateFactory) -> None:
    made = (Decimal("1.5"), 4.0, Decimal(4), 0.1, Decimal("1.5"), True)
    none = (*made[:1], 4.5, *made[2:])
    fields = "d decimal(10,2), l long, i int, f float, x double, b boolean"

    def once_more(state: MapState, tuples: Any) -> None:
        for (_,) in tuples:
            (known,) = state.multi_get(key for key in [made])  # type: ignore[arg-type]
            state.multi_put([made], [((known[0] if known else 0) + 1,)])

    def forget(state: MapState, tuples: Any) -> None:
        state.multi_remove(key for key in [made])  # type: ignore[arg-type]

    def misses(state: MapState, tuples: Any) -> None:
        state.multi_get([none])

    plain = replace(combined(factory, fields, "n long"), staged=parse_declared("word string"))
    spec = replace(plain, updater=once_more)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a",), ("b",)))
        apply(state, ticket(2), batch(spec, ("c",)))
        assert [value for (value,) in content(state).values()] == [3]
        assert Reading(state, spec).multi_get([made, none, made]) == [(3,), None, (3,)]
    refused = pytest.raises(UserCodeError, match=r"a key has not the type of its fields \(d, l, i, f, x, b\)")
    with factory.make_state(replace(plain, updater=misses)) as state, refused:
        apply(state, ticket(3), batch(spec, ("d",)))
    with factory.make_state(replace(plain, updater=forget)) as state:
        apply(state, ticket(3), batch(spec, ("d",)))
        assert content(state) == {}


def test_a_query_finds_nothing_for_a_whole_number_beyond_the_field_of_the_key(factory: StateFactory) -> None:
    spec = combined(factory, "i int, s short, b byte, l long", "n long", Count())
    low, high = [(sign * 2**31, sign * 2**15, sign * 2**7, sign * 2**63) for sign in (-1, 1)]
    last = tuple(part - 1 for part in high)
    beyond = [(*last[:place], high[place], *last[place + 1 :]) for place in range(4)]
    below = [(*low[:place], low[place] - 1, *low[place + 1 :]) for place in range(4)]
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (*low, 1), (*last, 2), (None, None, None, None, 3)))
        asked = [low, *beyond, last, *below, (None,) * 4]
        reading = Reading(state, spec)
        expected = [(1,), *[(None,)] * 4, (2,), *[(None,)] * 4, (3,)]
        assert MapGet().batch_retrieve(reading, asked) == expected
        assert reading.multi_get(beyond) == [None] * 4


def upserts(factory: StateFactory, keys: str = "word string") -> StateSpec:
    spec = combined(factory, keys, "n long, tags array<string>")
    put = MapPut(state=spec.name, staged=names_of(spec.staged), keys=spec.key_names, values=spec.value_names)
    return replace(spec, updater=put)


def test_an_upsert_replaces_the_values_of_its_key_and_equal_tuples_are_one(factory: StateFactory) -> None:
    spec = upserts(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1, ["x"]), ("b", 2, None), ("a", 1, ["x"])))
        apply(state, ticket(2), batch(spec, ("a", None, ["x", None]), ("a", None, ["x", None])))
        assert content(state) == {("a",): (None, ["x", None]), ("b",): (2, None)}


@pytest.mark.parametrize(
    ("keys", "rows", "said"),
    [
        ("word string", [("a", 1, []), ("b", 1, []), ("a", 2, [])], r"\(word='a'\).*\(n=1, tags=\[\]\) and \(n=2"),
        ("word string", [(None, 1, ["x"]), (None, 1, ["x", None])], r"\(word=None\).*\['x'\]\) and .*\['x', None\]"),
        ("real double", [(math.nan, 1, []), (math.nan, None, [])], r"\(real=nan\).*\(n=1,.* and \(n=None"),
        ("real double", [(0.0, 1, []), (-0.0, 2, [])], r"\(real=0\.0\)"),
        ("", [(1, []), (2, [])], "without key fields"),
    ],
)
def test_of_equal_keys_with_different_values_none_is_chosen_by_chance(
    factory: StateFactory, keys: str, rows: list[tuple[Any, ...]], said: str
) -> None:
    spec = upserts(factory, keys)
    with factory.make_state(spec) as state:
        with pytest.raises(UserCodeError, match=rf"same key of state 'counts' .*{said}.*order_by="):
            state.apply(ticket(1), batch(spec, *rows))
        assert state.marker() is None
        assert content(state) == {}


@pytest.mark.parametrize(
    ("updater", "said"),
    [
        (lambda state, rows: state.multi_put([("a",), ("b",)], [("x",)]), "ValueError"),
        (lambda state, rows: state.multi_put([("a",)], ["x"]), "a value is a tuple of 1 fields, got 'x'"),
        (lambda state, rows: state.multi_put(["a"], [("x",)]), "a key is a tuple of 1 fields, got 'a'"),
        (lambda state, rows: state.multi_get([("a", "b")]), "a key is a tuple of 1 fields"),
        (lambda state, rows: state.multi_put([("a",)], [(7,)]), r"line string cannot hold 7 \(key \('a',\)\)"),
        (lambda state, rows: next(iter([])), "StopIteration"),
    ],
)
def test_an_updater_that_errs_is_named_and_nothing_is_applied(factory: StateFactory, updater: Any, said: str) -> None:
    spec = replace(longest(factory), updater=updater)
    with factory.make_state(spec) as state:
        with pytest.raises(UserCodeError, match=said):
            state.apply(ticket(1), batch(spec, ("a", "xx")))
        assert state.marker() is None
        assert content(state) == {}


def test_an_updater_changes_no_key_that_a_stream_of_new_values_would_miss(factory: StateFactory) -> None:
    def with_total(state: MapState, tuples: Any) -> None:
        rows = list(tuples)
        state.multi_put([(word,) for word, _ in rows], [(line,) for _, line in rows])
        state.multi_put([("total",)], [("x",)])

    spec = replace(longest(factory), updater=with_total)
    with factory.make_state(replace(spec, told=True)) as state:
        with pytest.raises(UserCodeError, match=r"with_total changed the key \(word='total'\) of state 'counts'"):
            state.apply(ticket(1), batch(spec, ("a", "y")))
        assert state.marker() is None
        apply(state, ticket(1), batch(spec, ("total", "y"), ("a", "z")))
        assert content(state) == {("a",): ("z",), ("total",): ("x",)}
    with factory.make_state(spec) as state:
        apply(state, ticket(2), batch(spec, ("b", "y")))
        assert content(state) == {("a",): ("z",), ("b",): ("y",), ("total",): ("x",)}


@pytest.mark.parametrize("combiner", [Count(), Product()])
def test_a_state_without_keys_holds_one_row(factory: StateFactory, combiner: Any) -> None:
    spec = combined(factory, "", "n long", combiner)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (3,)))
        apply(state, ticket(2), batch(spec, (5,)))
        apply(state, ticket(3), batch(spec))
        assert content(state) == {(): (8,) if isinstance(combiner, Count) else (15,)}


def test_several_values_are_merged_each_by_its_own_combiner(factory: StateFactory) -> None:
    spec = combined(factory, "k int", "n long, low double, high string", Count(), Min(), Max())
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, 2, 0.5, "b"), (2, 1, None, None), (3, 1, 1.0, "z")))
        apply(state, ticket(2), batch(spec, (1, 3, 0.25, "a"), (2, 1, 7.0, "q"), (3, 0, None, None)))
        assert content(state) == {(1,): (5, 0.25, "b"), (2,): (2, 7.0, "q"), (3,): (1, 1.0, "z")}


def test_an_array_as_key_is_refused_when_the_state_is_opened(factory: StateFactory) -> None:
    with pytest.raises(ConfigurationError, match=r"key field 'words' of type array<string>"):
        factory.make_state(combined(factory, "words array<string>", "n long", Count()))


# ---- types -----------------------------------------------------------------------------------------------------

UTC = datetime.UTC
SAMPLES: dict[str, list[Any]] = {
    "string": ["", "a", "A", "é\U0001f600", "\0", '"],[', "null", "NaN", "1"],
    "long": [0, -1, 2**63 - 1, -(2**63)],
    "int": [0, -(2**31), 2**31 - 1],
    "short": [0, -(2**15), 2**15 - 1],
    "byte": [0, -128, 127],
    "double": [0.0, 0.1, -1.5, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "float": [0.5, -2.0, math.nan],
    "boolean": [True, False],
    "binary": [b"", b"\0\xff", b"a"],
    "date": [datetime.date(1, 1, 1), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)],
    "time": [
        datetime.time(),
        datetime.time(0, 0, 0, 1),
        datetime.time(12, 30, 0, 500_000),
        datetime.time(23, 59, 59, 999_999),
    ],
    INTERVAL: [
        datetime.timedelta(),
        datetime.timedelta(microseconds=-1),
        datetime.timedelta(days=1, seconds=1),
        datetime.timedelta(days=106_751_991),
        datetime.timedelta(days=-106_751_991),
    ],
    "timestamp": [
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime.datetime(2024, 1, 1, tzinfo=UTC),
    ],
    "decimal(10,2)": [Decimal("0.00"), Decimal("-99999999.99"), Decimal("1.10")],
}
NESTED: dict[str, list[Any]] = {
    "array<string>": [[], ["a", None, "\0"], None],
    "array<double>": [[0.5, math.inf, None], []],
    "array<binary>": [[b"\xff", None]],
    "array<boolean>": [[True, False, None]],
    "array<array<date>>": [[[datetime.date(2024, 1, 1)], [], None]],
    "array<timestamp>": [[datetime.datetime(2024, 1, 1, tzinfo=UTC)]],
    "array<decimal(5,1)>": [[Decimal("1.5"), None]],
    "map<string,long>": [{}, {"": 1, "\0": None, '"é': -(2**63)}, None],
    "map<long,array<string>>": [{2**62: ["a"], -1: None}],
    "map<date,double>": [{datetime.date(2024, 2, 29): math.inf}],
    "map<short,array<byte>>": [{-5: [1, None, -128]}],
    "map<boolean,binary>": [{True: b"\xff", False: b""}],
    "map<time,interval day to second>": [{datetime.time(1, 2, 3): datetime.timedelta(microseconds=-7)}],
    "struct<spans:array<interval day to second>,at:time>": [
        {"spans": [datetime.timedelta(days=400), None], "at": datetime.time(4, 5, 6, 7)},
        {"spans": None, "at": None},
    ],
    "map<timestamp,map<string,int>>": [{datetime.datetime(2024, 1, 1, tzinfo=UTC): {"a": 1}}],
    "struct<a:long,B:string>": [{"a": 1, "B": "x"}, {"a": None, "B": None}, None],
    "struct<at:timestamp,price:decimal(5,1),inner:struct<raw:binary,day:date>,tags:map<string,array<float>>>": [
        {
            "at": datetime.datetime(2024, 1, 1, tzinfo=UTC),
            "price": Decimal("1.5"),
            "inner": {"raw": b"\0", "day": datetime.date(1, 1, 1)},
            "tags": {"x": [0.5, None]},
        }
    ],
    "array<struct<n:int,b:boolean>>": [[{"n": 1, "b": True}, None], []],
}


def lacks(factory: StateFactory, type_text: str) -> bool:
    """Delta tables have neither times of day nor intervals."""
    return "DeltaState" in factory.describe() and (has_times(type_text) or INTERVAL in type_text)


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right) or left == right


@pytest.mark.parametrize("type_text", SAMPLES)
def test_every_type_is_a_key_and_a_value_and_comes_back_as_it_was(factory: StateFactory, type_text: str) -> None:
    samples = [*SAMPLES[type_text], None]
    spec = combined(factory, f"k {type_text}", f"v {type_text}", Max())
    if lacks(factory, type_text):
        with pytest.raises(
            ConfigurationError, match=f"the field 'k' of type {type_text}; Delta tables have neither times"
        ):
            factory.make_state(spec)
        return
    with factory.make_state(spec) as state:
        for txid in (1, 2):
            apply(state, ticket(txid), batch(spec, *((sample, sample) for sample in samples)))
        found = sorted(state.items(), key=repr)
        assert len(found) == len(samples)
        for (key,), (value,) in found:
            assert same(key, value)
            assert any(same(value, sample) and type(value) is type(sample) for sample in samples), value


@pytest.mark.parametrize("type_text", NESTED)
def test_arrays_maps_and_structs_are_values(factory: StateFactory, type_text: str) -> None:
    spec = replace(combined(factory, "k long", f"v {type_text}"), updater=put_all)
    if lacks(factory, type_text):
        with pytest.raises(ConfigurationError, match="Delta tables have neither times"):
            factory.make_state(spec)
        return
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, *enumerate(NESTED[type_text])))
        assert [value for (_,), (value,) in sorted(state.items())] == NESTED[type_text]


def put_all(state: Any, rows: Any) -> None:
    for key, value in rows:
        state.multi_put([(key,)], [(value,)])


def test_keys_of_several_fields_with_nulls_are_kept_apart(factory: StateFactory) -> None:
    keys = [("a", None), (None, "a"), (None, None), ("a,null", ""), ("", "a,null"), ("a", "a"), ("null", None)]
    spec = combined(factory, "a string, b string", "n long", Count())
    with factory.make_state(spec) as state:
        for txid in (1, 2):
            apply(state, ticket(txid), batch(spec, *((*key, 1) for key in keys)))
        assert content(state) == dict.fromkeys(keys, (2,))


def test_the_two_zeros_are_one_key_and_so_are_all_nans(factory: StateFactory) -> None:
    for spec in (
        combined(factory, "k double", "n long", Count(), name="native"),
        combined(factory, "k double", "n long", Product(), name="ours"),
    ):
        with factory.make_state(spec) as state:
            apply(state, ticket(1), batch(spec, (0.0, 2), (-0.0, 3), (math.nan, 5), (float("nan"), 7)))
            apply(state, ticket(2), batch(spec, (-0.0, 1), (-math.nan, 1)))
            native = spec.name == "native"
            assert sorted((repr(key), value) for (key,), (value,) in state.items()) == [
                ("0.0", 6),
                ("nan", 13 if native else 35),
            ]


def test_a_real_number_in_a_struct_or_array_keeps_the_sign_of_zero(factory: StateFactory) -> None:
    spec = replace(combined(factory, "k long", "v struct<a:float,b:array<double>>"), updater=put_all)
    stored = {"a": -0.0, "b": [-0.0, 0.0, math.nan]}
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, stored)))
        assert repr(content(state)) == repr({(1,): (stored,)})


def test_sums_of_decimals_are_exact_to_the_last_of_38_digits(factory: StateFactory) -> None:
    spec = combined(factory, "k long", "total decimal(38,2)", Sum())
    big = Decimal("123456789012345678901234567890123456.78")
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, big)))
        apply(state, ticket(2), batch(spec, (1, Decimal("0.01"))))
        assert content(state) == {(1,): (Decimal("123456789012345678901234567890123456.79"),)}
        with pytest.raises(UserCodeError, match=r"total decimal\(38,2\) cannot hold"):
            state.apply(ticket(3), batch(spec, (1, Decimal("999999999999999999999999999999999999.99"))))


def test_a_sum_of_many_decimals_that_overflows_by_its_last_digits_is_refused(factory: StateFactory) -> None:
    spec = combined(factory, "k long", "total decimal(38,0)", Sum())
    third = Decimal("33333333333333333333333333334999999999")
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, third)))
        apply(state, ticket(2), batch(spec, (1, third)))
        with pytest.raises(UserCodeError, match=r"total decimal\(38,0\) cannot hold"):
            state.apply(ticket(3), batch(spec, (1, third)))


def test_sums_of_doubles_reach_infinity_and_nan_as_ieee_says(factory: StateFactory) -> None:
    spec = combined(factory, "k long", "total double", Sum())
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, 1e308), (2, math.inf), (3, math.nan), (4, 0.1)))
        apply(state, ticket(2), batch(spec, (1, 1e308), (2, -math.inf), (3, 1.0), (4, 0.2)))
        apply(state, ticket(3), batch(spec, (2, 1.0)))
        found = {key: value for (key,), (value,) in state.items()}
        assert found[1] == math.inf
        assert math.isnan(found[2])
        assert math.isnan(found[3])
        assert found[4] == 0.1 + 0.2
