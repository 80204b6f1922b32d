"""Adds operations to a `multi` of kazoo, and finds which of them was refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_trident.ledger.znodes import Check, Create, Delete, Op, Refusal, refused


def raise_first(ops: Sequence[Op], results: Sequence[object]) -> None:
    """:raises WriteRefusedError: the condition of an operation did not hold. Other failures are raised as they are."""
    from kazoo import exceptions as kz

    refusals = {
        kz.BadVersionError: Refusal.BAD_VERSION,
        kz.NodeExistsError: Refusal.NODE_EXISTS,
        kz.NoNodeError: Refusal.NO_NODE,
        kz.NotEmptyError: Refusal.NOT_EMPTY,
    }
    # Operations before the one that failed say "rolled back", those after it "inconsistency".
    fillers = (kz.RolledBackError, kz.RuntimeInconsistency)
    failures = [(op, result) for op, result in zip(ops, results, strict=True) if isinstance(result, Exception)]
    for op, failure in failures:
        if type(failure) in refusals:
            raise refused(op, refusals[type(failure)])
        if not isinstance(failure, fillers):
            raise failure
    if failures:
        raise failures[0][1]


def add(transaction: Any, op: Op) -> None:
    if isinstance(op, Check):
        transaction.check(op.path, op.version)
    elif isinstance(op, Create):
        transaction.create(op.path, op.data, ephemeral=op.ephemeral)
    elif isinstance(op, Delete):
        transaction.delete(op.path, version=op.version)
    else:
        transaction.set_data(op.path, op.data, version=op.version)
