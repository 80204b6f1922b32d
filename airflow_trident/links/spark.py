"""The link from an emitter to the Spark UI of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class SparkUiLink(BaseOperatorLink):
    """ "Spark UI": the web page of the running job. Pushed as soon as Spark gives its address; ends with the job."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return str(getattr(operator, "spark_ui_url", ""))
