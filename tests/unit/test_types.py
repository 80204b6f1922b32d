"""Types as they are written, and their one normal form."""

from __future__ import annotations

import datetime
from typing import Any, TypedDict

import pytest

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.errors import FieldError
from airflow_trident.io.values import UnfitValueError, coercer
from airflow_trident.operations.user_functions import type_of_annotation
from airflow_trident.types import Field, has_times, members, parse_declared, parse_type

NOON, LONGEST = datetime.time(12), datetime.timedelta(days=106_751_991)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        (" BIGINT ", "long"),
        ("SMALLINT", "short"),
        ("tinyint", "byte"),
        ("Decimal( 10 , 2 )", "decimal(10,2)"),
        ("TIME", "time"),
        ("time(6)", "time"),
        ("Interval  DAY to\tsecond", "interval day to second"),
        ("map<Time, struct<d: interval day to second>>", "map<time,struct<d:interval day to second>>"),
        ("Array< ARRAY<int> >", "array<array<int>>"),
        ("map<string, decimal(3, 1)>", "map<string,decimal(3,1)>"),
        ("MAP<bigint,map<date,array<str>>>", "map<long,map<date,array<string>>>"),
        ("struct<Name: string, n:bigint>", "struct<Name:string,n:long>"),
        (
            "struct<a string, b struct<c: map<int, string>, d : binary>>",
            "struct<a:string,b:struct<c:map<int,string>,d:binary>>",
        ),
    ],
)
def test_a_type_has_one_normal_form(written: str, normal: str) -> None:
    assert parse_type(written) == normal
    assert parse_type(normal) == normal


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("text", "unknown type 'text'"),
        ("time(3)", r"unknown type 'time\(3\)'. Use one of .*date, time, timestamp, interval day to second,"),
        ("interval", "unknown type 'interval'"),
        ("array<>", "unknown type ''"),
        ("array<int,int>", "unknown type 'array<int,int>'"),
        ("map<string>", "unknown type 'map<string>'"),
        ("map<double,long>", "keys of type double"),
        ("map<array<long>,long>", r"keys of type array<long>"),
        ("struct<>", "unknown type 'struct<>'"),
        ("struct<a>", "'a' is no member of a struct"),
        ("struct<1a:long>", "'1a:long' is no member"),
        ("struct<a:long,A:int>", "duplicate field 'a'"),
        ("struct<a:long,b:whole>", "unknown type 'whole'"),
    ],
)
def test_what_is_no_type_is_refused_by_name(written: str, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        parse_type(written)


def test_fields_are_told_apart_by_the_commas_outside_of_brackets() -> None:
    declared = parse_declared("a map<string,array<long>>, b decimal(3,1), c struct<x: int, y: map<int,int>>, d long")
    assert [field.name for field in declared] == ["a", "b", "c", "d"]
    assert [field.type for field in declared][2:] == ["struct<x:int,y:map<int,int>>", "long"]


def test_the_members_of_a_nested_type() -> None:
    assert members("long") == ()
    assert members("array<map<int,int>>") == (Field("element", "map<int,int>"),)
    assert members("map<int,decimal(3,1)>") == (Field("key", "int"), Field("value", "decimal(3,1)"))
    assert members("struct<a:long,b:struct<c:int,d:int>>") == (Field("a", "long"), Field("b", "struct<c:int,d:int>"))


def test_times_of_day_are_found_in_other_types() -> None:
    assert all(map(has_times, ("time", "array<time>", "map<time,long>", "map<long,time>", "struct<a:long,b:time>")))
    assert not any(map(has_times, ("timestamp", "struct<time:long,at_time:int>", "map<date,timestamp>")))


class User(TypedDict):
    name: str
    tags: dict[str, list[int]]


def test_annotations_give_maps_and_structs() -> None:
    assert type_of_annotation(dict[str, int]) == "map<string,long>"
    assert type_of_annotation(dict[str, int] | None) == "map<string,long>"
    assert type_of_annotation(list[User]) == "array<struct<name:string,tags:map<string,array<long>>>>"
    assert type_of_annotation(dict) is None
    assert type_of_annotation(dict[datetime.time, datetime.timedelta]) == "map<time,interval day to second>"


@pytest.mark.parametrize(
    ("type_text", "value", "result"),
    [
        ("map<string,double>", {"a": 1}, {"a": 1.0}),
        ("struct<a:double,b:string>", {"b": None, "a": 1}, {"a": 1.0, "b": None}),
        ("struct<a:double,b:string>", (1, "x"), {"a": 1.0, "b": "x"}),
        ("map<time,interval day to second>", {NOON: LONGEST}, {NOON: LONGEST}),
        ("struct<a:interval day to second>", {"a": -LONGEST}, {"a": -LONGEST}),
    ],
)
def test_values_get_the_declared_types(type_text: str, value: Any, result: Any) -> None:
    found = coercer(type_text)(value)
    assert found == result
    assert list(map(type, found.values())) == list(map(type, result.values()))


@pytest.mark.parametrize(
    ("type_text", "value"),
    [
        ("map<string,long>", {1: 1}),
        ("map<string,long>", {None: 1}),
        ("map<string,long>", {"a": "1"}),
        ("map<string,long>", [("a", 1)]),
        ("struct<a:long>", {}),
        ("time", NOON.replace(tzinfo=datetime.UTC)),
        ("time", datetime.datetime(2024, 1, 1)),
        ("time", "12:00:00"),
        ("interval day to second", 7),
        ("interval day to second", LONGEST + datetime.timedelta(microseconds=1)),
        ("interval day to second", -LONGEST - datetime.timedelta(microseconds=1)),
        ("struct<a:long>", {"a": 1, "b": 2}),
        ("struct<a:long>", (1, 2)),
        ("struct<a:long>", [1]),
    ],
)
def test_values_that_do_not_fit_are_refused(type_text: str, value: Any) -> None:
    with pytest.raises(UnfitValueError, match="is declared"):
        coercer(type_text)(value)


def test_maps_and_structs_do_not_tell_tuples_apart() -> None:
    topology = Topology("t")
    stream = topology.new_stream("s", FixedBatchSpout("s struct<a:long>, m array<map<int,int>>, n long", []))
    for fields in ("s", "n, m"):
        for verb in (stream.group_by, stream.partition_by):
            with pytest.raises(FieldError, match=rf"{verb.__name__} cannot compare the field '[sm]' of type"):
                verb(fields)
        with pytest.raises(FieldError, match="join cannot compare"):
            topology.join([stream, stream], [fields, fields], "a, b, c, d, e")
