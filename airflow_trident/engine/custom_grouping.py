"""Custom groupings: chooses the partitions of a tuple and checks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_trident.io.values import shown
from airflow_trident.operations.interfaces import CustomGrouping, Function, OperationContext
from airflow_trident.operations.user_code import Border
from airflow_trident.operations.user_functions import function_name


@dataclass(frozen=True)
class Choosing(Function):
    """A function from the values of a tuple to the numbers of its partitions, from 0 to `count` - 1."""

    node: str
    fields: tuple[str, ...]
    grouping: CustomGrouping
    count: int
    txid: int

    def prepare(self, context: OperationContext) -> None:
        self.grouping.prepare(context)

    def cleanup(self) -> None:
        self.grouping.cleanup()

    def execute(self, *values: Any) -> Iterable[int]:
        """:raises UserCodeError: the grouping raised, or named a partition that does not exist."""
        border = Border(self.node, function_name(self.grouping), self.fields, self.txid)
        partitions = border.one(lambda *row: self.grouping.choose_partitions(self.count, *row), values)
        border.require_iterable(values, partitions)
        chosen = list(partitions)
        if any(type(number) is not int or not 0 <= number < self.count for number in chosen):
            raise border.error(values, f"chose the partitions {shown(chosen)} of {self.count}")
        return chosen
