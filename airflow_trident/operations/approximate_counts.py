"""Approximate distinct counts in little memory: HyperLogLog over a hash that is the same in every process and engine.

The estimator is algorithm 6 of O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017): it
needs no correction tables and is equally good for few and for many values.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from decimal import Context, Decimal
from hashlib import blake2b
from typing import Any

from airflow_trident.errors import FieldError
from airflow_trident.operations.aggregators import SummaryAggregator
from airflow_trident.operations.equality import canonical_key
from airflow_trident.operations.interfaces import Collector, TransactionAttempt

_HASH_BITS = 64
_BITS_OF_PLACE = range(4, 19)
"""Bits of a hash that choose its register; the other bits give its rank."""
_CANONICAL = Context(prec=100)


class ApproxCountDistinct(SummaryAggregator[bytearray]):
    """An approximate number of distinct tuples, as a long; tuples that contain a null are not counted.

    The same tuples give the same number in any order, attempt and engine, so a replay does not differ. Spark's
    `approx_count_distinct` gives another number, because it uses another hash.

    :param error: the standard error, as a share; a group needs about ``1 / error ** 2`` bytes, from 16 bytes to 256
        KiB.
    :raises FieldError: the error is not from 0.00204 to 0.26.
    """

    fields = None

    def __init__(self, error: float = 0.02) -> None:
        least, largest = (1.04 / math.sqrt(2**bits) for bits in (_BITS_OF_PLACE[-1], _BITS_OF_PLACE[0]))
        if isinstance(error, bool) or not isinstance(error, int | float) or not least <= error <= largest:
            raise FieldError(
                f"ApproxCountDistinct got the error {error!r}",
                f"Give a share from {math.ceil(least * 1e5) / 1e5:g} to {largest:g}; CountDistinct is exact.",
            )
        self._bits = math.ceil(math.log2((1.04 / error) ** 2))

    def init(self, batch: TransactionAttempt, collector: Collector) -> bytearray:
        return bytearray(1 << self._bits)

    def take(self, state: bytearray, *values: Any) -> None:
        hashed = int.from_bytes(blake2b(_bytes_of(canonical_key(values)), digest_size=_HASH_BITS // 8).digest())
        rest = _HASH_BITS - self._bits
        place, tail = hashed >> rest, hashed & ((1 << rest) - 1)
        state[place] = max(state[place], rest - tail.bit_length() + 1)

    def value(self, state: bytearray) -> int:
        size, ranks = len(state), Counter(state)
        rest = _HASH_BITS - self._bits
        total = size * _tau(1 - ranks[rest + 1] / size)
        for rank in range(rest, 0, -1):
            total = (total + ranks[rank]) / 2
        total += size * _sigma(ranks[0] / size)
        return round(size * size / (2 * math.log(2) * total))

    def type_of(self, input_types: tuple[str, ...]) -> str:
        return "long"


def _sigma(share: float) -> float:
    """Ertl's sigma. `share`: of registers that are empty."""
    if share == 1.0:
        return math.inf
    factor, total, before = 1.0, share, -1.0
    while total != before:
        share *= share
        before = total
        total += share * factor
        factor += factor
    return total


def _tau(share: float) -> float:
    """Ertl's tau. `share`: of registers below their limit."""
    if share in (0.0, 1.0):
        return 0.0
    factor, total, before = 1.0, 1 - share, -1.0
    while total != before:
        share = math.sqrt(share)
        before = total
        factor /= 2
        total -= (1 - share) ** 2 * factor
    return total / 3


def _bytes_of(values: tuple[Any, ...]) -> bytes:
    """Equal tuples give equal bytes, in every process and Python release."""
    parts = [_part(value) for value in values]
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


def _part(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        value = value.normalize(_CANONICAL)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.timedelta):
        value = (value.days, value.seconds, value.microseconds)
    return str(value).encode(errors="surrogatepass")
