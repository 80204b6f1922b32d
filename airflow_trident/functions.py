"""Functions, aggregators, expressions and windows for topologies, as Spark's ``pyspark.sql.functions``.

``from airflow_trident import functions as F``; each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.public_names import public_name, public_names

if TYPE_CHECKING:
    from airflow_trident.operations.aggregators import Average as Average
    from airflow_trident.operations.aggregators import CollectList as CollectList
    from airflow_trident.operations.aggregators import CollectSet as CollectSet
    from airflow_trident.operations.aggregators import Count as Count
    from airflow_trident.operations.aggregators import CountDistinct as CountDistinct
    from airflow_trident.operations.aggregators import Max as Max
    from airflow_trident.operations.aggregators import MaxBy as MaxBy
    from airflow_trident.operations.aggregators import Min as Min
    from airflow_trident.operations.aggregators import MinBy as MinBy
    from airflow_trident.operations.aggregators import Percentile as Percentile
    from airflow_trident.operations.aggregators import StandardDeviation as StandardDeviation
    from airflow_trident.operations.aggregators import Sum as Sum
    from airflow_trident.operations.aggregators import Variance as Variance
    from airflow_trident.operations.approximate_counts import ApproxCountDistinct as ApproxCountDistinct
    from airflow_trident.operations.builtin import Debug as Debug
    from airflow_trident.operations.builtin import Equals as Equals
    from airflow_trident.operations.builtin import FilterNull as FilterNull
    from airflow_trident.operations.builtin import FirstN as FirstN
    from airflow_trident.operations.builtin import MaxWithComparator as MaxWithComparator
    from airflow_trident.operations.builtin import MinWithComparator as MinWithComparator
    from airflow_trident.operations.builtin import Negate as Negate
    from airflow_trident.operations.builtin import Split as Split
    from airflow_trident.operations.builtin import TrueFilter as TrueFilter
    from airflow_trident.operations.expressions import cast as cast
    from airflow_trident.operations.expressions import coalesce as coalesce
    from airflow_trident.operations.expressions import col as col
    from airflow_trident.operations.expressions import concat as concat
    from airflow_trident.operations.expressions import contains as contains
    from airflow_trident.operations.expressions import ends_with as ends_with
    from airflow_trident.operations.expressions import explode as explode
    from airflow_trident.operations.expressions import is_not_null as is_not_null
    from airflow_trident.operations.expressions import is_null as is_null
    from airflow_trident.operations.expressions import length as length
    from airflow_trident.operations.expressions import lit as lit
    from airflow_trident.operations.expressions import lower as lower
    from airflow_trident.operations.expressions import size as size
    from airflow_trident.operations.expressions import split as split
    from airflow_trident.operations.expressions import split_words as split_words
    from airflow_trident.operations.expressions import starts_with as starts_with
    from airflow_trident.operations.expressions import substring as substring
    from airflow_trident.operations.expressions import trim as trim
    from airflow_trident.operations.expressions import upper as upper
    from airflow_trident.operations.expressions import when as when
    from airflow_trident.operations.interfaces import JoinOutFieldsMode as JoinOutFieldsMode
    from airflow_trident.operations.rules import check as check
    from airflow_trident.operations.rules import expect as expect
    from airflow_trident.operations.sql import spark_sql as spark_sql
    from airflow_trident.operations.state_functions import MapGet as MapGet
    from airflow_trident.operations.state_functions import SnapshotGet as SnapshotGet
    from airflow_trident.operations.state_functions import TupleCollectionGet as TupleCollectionGet
    from airflow_trident.operations.windows import SlidingCountWindow as SlidingCountWindow
    from airflow_trident.operations.windows import SlidingDurationWindow as SlidingDurationWindow
    from airflow_trident.operations.windows import TumblingCountWindow as TumblingCountWindow
    from airflow_trident.operations.windows import TumblingDurationWindow as TumblingDurationWindow


def __getattr__(name: str) -> Any:
    return [*public_names(__name__)] if name == "__all__" else public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *public_names(__name__)])
