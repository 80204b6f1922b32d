"""The link from an emitter to the Spark job's own page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class SparkUiLink(BaseOperatorLink):
    """ "Spark UI": where the running job can be looked at. Pushed as soon as Spark tells it, gone when the job is."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return str(getattr(operator, "spark_ui_url", ""))
