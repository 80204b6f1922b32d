"""The link from a task to the page of its transaction.

The link from an emitter to the Spark UI of its job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

VIEW_ROUTE = "transactions"
"""`url_route` of the plugin's page in Airflow's navigation."""
APP_PREFIX = "/trident"
"""Path of the plugin's application in the API server."""


def base_path() -> str:
    """The path of ``[api] base_url``, without a slash at the end. Airflow may be served below such a path."""
    from airflow.providers.common.compat.sdk import conf

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def transaction_url(topology: str, *txids: int) -> str:
    """The page inside Airflow: one transaction; for several, the list from lowest to highest; for none, all."""
    query = {"topology": topology}
    if len(txids) == 1:
        query["txid"] = str(txids[0])
    elif txids:
        query["find"] = f"{min(txids)} to {max(txids)}"
    return f"{base_path()}/plugin/{VIEW_ROUTE}{quote(APP_PREFIX)}/?{urlencode(query)}"


class TransactionLink(BaseOperatorLink):
    """ "Transaction": the entry in the ledger. Made in the worker when the task ends, and kept as an XCom."""

    name = "Transaction"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        task: Any = operator
        return transaction_url(task.topology_name, *getattr(task, "current_txids", ()))


class SparkUiLink(BaseOperatorLink):
    """ "Spark UI": the web page of the running job. Pushed as soon as Spark gives its address; ends with the job."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return str(getattr(operator, "spark_ui_url", ""))
