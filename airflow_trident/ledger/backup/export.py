"""A whole ledger as JSON, for people, for tools and for import. The same from every implementation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from airflow_trident.ledger.paths import BUCKETS, LedgerPaths
from airflow_trident.ledger.znodes import ZNodes
from airflow_trident.protocol import codec, record_format
from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.types import Json

VERSION = record_format.VERSION
"""The export has the bodies of the records."""
READ_AT_ONCE = 500
"""How many records one round trip reads."""


def export_json(
    view: LedgerView, records: Sequence[TxRecord], claims: Mapping[str, tuple[int, int]]
) -> dict[str, Json]:
    """:param claims: claim key -> (txid, when the run was due), for all claims that are kept."""
    body = {
        "version": VERSION,
        "topology": codec.topology_body(view.topology),
        "next_txid": view.next_txid,
        "pointer": asdict(view.pointer),
        "exceptions": codec.exceptions_body(view.exceptions),
        "transactions": [codec.tx_body(record) for record in records],
        "claims": {key: txid for key, (txid, _) in sorted(claims.items())},
        "claim_run_ms": {key: run_ms for key, (_, run_ms) in sorted(claims.items())},
    }
    plain: dict[str, Json] = json.loads(json.dumps(body))  # tuples and enums as JSON has them
    return plain


def claims_of(znodes: ZNodes, paths: LedgerPaths) -> dict[str, tuple[int, int]]:
    """Claim key -> (txid, when the run was due), for all claims that are kept."""
    buckets = [paths.bucket(name) for name in BUCKETS]
    folders = znodes.read([], buckets).folders
    keys = [f"{bucket}/{name}" for bucket in buckets for name in sorted(folders[bucket] or ())]
    claims: dict[str, tuple[int, int]] = {}
    for at in range(0, len(keys), READ_AT_ONCE):
        for path, node in znodes.read(keys[at : at + READ_AT_ONCE]).nodes.items():
            if node is not None:
                claim = codec.decode_claim(node.data, path)
                claims[claim.key] = (claim.txid, claim.run_ms)
    return claims
