"""The plugin's web application: a JSON API and one page. Imported by the API server only.

Airflow does not protect a plugin's application: every route that shows or does anything checks the user itself.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    RetryableError,
    TransitionError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.plugin import airflow_runs, page_actions, page_data, page_partitions
from airflow_trident.plugin.page_actions import Asked
from airflow_trident.plugin.page_data import Choice
from airflow_trident.plugin.rows import Sight
from airflow_trident.protocol.records import Status
from airflow_trident.tasks import telemetry

_FOLDER = Path(__file__).with_name("page")
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_SERVED = {path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}
_DIGEST = hashlib.sha256(repr(_SERVED).encode()).hexdigest()[:16]
"""Part of the files' addresses: a browser asks for the files once, and again when one of them has changed."""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="{color}" stroke-width="2" '
    'stroke-linecap="round" stroke-linejoin="round"><path d="M12 22V3M4 4v4a5 5 0 0 0 5 5h6a5 5 0 0 0 5-5V4M9 6l3-4 '
    '3 4"/></svg>'
)
_AUTHENTICATED = [Depends(requires_authenticated())]
_STATUS_OF = {
    UnknownTopologyError: 404,
    ConfigurationError: 422,
    TransitionError: 409,
    FencedError: 409,
    RetryableError: 503,
}
"""The first class in this order that the error belongs to gives the status."""

telemetry.initialize()


class _Ascii(JSONResponse):
    """JSON with escapes: a text may have what UTF-8 has no bytes for, such as half of a pair in the name of a file."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


# No generated documentation: everybody could read it.
app = FastAPI(title="airflow-trident", docs_url=None, redoc_url=None, openapi_url=None, default_response_class=_Ascii)


@app.exception_handler(TridentError)
def _explain(_request: Request, error: TridentError) -> JSONResponse:
    """The error's own text, which names the cure."""
    status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
    return JSONResponse({"detail": str(error)}, status_code=status, headers={"Cache-Control": "no-store"})


@app.get("/", response_class=HTMLResponse, dependencies=_AUTHENTICATED)
def page() -> HTMLResponse:
    """The page. All data in it comes from the routes below."""
    text = (_FOLDER / "page.html").read_text(encoding="utf-8").replace('="page/', f'="page/{_DIGEST}/')
    return HTMLResponse(text, headers={"Cache-Control": "no-cache"})


@app.get("/page/{digest}/{name}", dependencies=_AUTHENTICATED)
def served(digest: str, name: str) -> Response:
    """:param digest: of the files when the page was loaded; a browser keeps files only under today's digest."""
    if name not in _SERVED:
        raise HTTPException(404, "There is no such file.")
    kept = "private, max-age=31536000, immutable" if digest == _DIGEST else "no-cache"
    return Response(_SERVED[name], media_type=_TYPES[Path(name).suffix], headers={"Cache-Control": kept})


@app.get("/api/names")
def list_names(user: GetUserDep, dag_id: str = "", run_id: str = "") -> dict[str, Any]:
    return page_data.names(_sight(user), dag_id, run_id)


@app.get("/api/topologies")
def list_topologies(user: GetUserDep) -> list[dict[str, Any]]:
    return page_data.topologies(_sight(user))


@app.get("/api/topologies/{topology}")
def list_transactions(
    topology: str,
    user: GetUserDep,
    txid: int = 0,
    status: list[Status] = Query(default=[]),  # noqa: B008 - as FastAPI declares it
    text: str = "",
    from_ms: int | None = None,
    to_ms: int | None = None,
    after: int | None = None,
    oldest_first: bool = False,
    partition: str = "",
) -> dict[str, Any]:
    choice = Choice(
        statuses=frozenset(status),
        text=text.strip(),
        from_ms=from_ms,
        to_ms=to_ms,
        after=after,
        oldest_first=oldest_first,
        partition=partition.strip(),
    )
    sight = _sight(user)
    content = page_data.transactions(topology, sight, txid if txid > 0 else None, choice)
    may_act = page_actions.may_edit(user, set(content["dags"])) and content["visible"]
    mending = airflow_runs.latest(topology, sight) if content["visible"] else []
    return {**content, "dags": sorted(sight.dags.intersection(content["dags"])), "may_act": may_act, "mending": mending}


@app.get("/api/topologies/{topology}/partitions", dependencies=_AUTHENTICATED)
def list_partitions(topology: str, period: str = "") -> dict[str, Any] | None:
    """Keys, statuses and numbers, which each user may see."""
    with page_data.open_ledgers() as ledgers:
        return page_partitions.grid(ledgers.ledger(topology), period.strip())


@app.post("/api/topologies/{topology}/actions")
def do(topology: str, request: Asked, user: GetUserDep) -> dict[str, Any]:
    return asdict(page_actions.act(topology, request, user))


@app.get("/api/topologies/{topology}/transactions/{txid}")
def show_transaction(topology: str, txid: int, user: GetUserDep) -> dict[str, Any]:
    content = page_data.transaction(topology, txid, _sight(user)) if txid > 0 else None
    if content is None:
        raise HTTPException(404, f"The ledger of {topology} has no record of transaction {txid}.")
    return content


@app.get("/icon.svg")
def icon() -> Response:
    return Response(_ICON.format(color="#333"), media_type="image/svg+xml")


@app.get("/icon-dark.svg")
def icon_dark() -> Response:
    return Response(_ICON.format(color="#ddd"), media_type="image/svg+xml")


def _sight(user: Any) -> Sight:
    manager = get_auth_manager()
    dags = manager.get_authorized_dag_ids(user=user, method="GET")
    return Sight(frozenset(dags), unowned=manager.is_authorized_connection(method="GET", user=user))
