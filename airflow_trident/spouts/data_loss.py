"""Rows that no transaction has read, and none can read any more: what spouts do about them, and what they advise."""

from __future__ import annotations

from enum import StrEnum

TAKE_AS_IT_IS = "`airflow trident accept-source TOPOLOGY TXID --reason WHY`"
"""How a transaction that is not committed takes its source as it is now."""


class OnDataLoss(StrEnum):
    """What a coordinator does if records that no transaction has read are gone, or came where none reads them."""

    ERROR = "error"
    CONTINUE = "continue"
    """Record the loss in the metadata of the next transaction, and continue with the records that are there."""
