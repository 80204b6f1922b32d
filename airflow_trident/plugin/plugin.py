"""The UI plugin (entry point ``airflow.plugins``)."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_trident.links import APP_PREFIX, VIEW_ROUTE, base_path


class TridentPlugin(AirflowPlugin):
    """The page "Transactions" in the navigation, on every DAG and on every task; and the reference for deadlines."""

    name = "trident"

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        page = f"{base_path()}{APP_PREFIX}/"
        here = {"name": "Transactions", "icon": f"{page}icon.svg", "icon_dark_mode": f"{page}icon-dark.svg"}
        return [
            {**here, "href": page, "destination": "nav", "url_route": VIEW_ROUTE, "category": "browse"},
            {**here, "href": f"{page}?dag_id={{DAG_ID}}", "destination": "dag", "url_route": f"{VIEW_ROUTE}-dag"},
            {
                **here,
                "href": f"{page}?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&map_index={{MAP_INDEX}}",
                "destination": "task_instance",
                "url_route": f"{VIEW_ROUTE}-task",
            },
        ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        # Only the API server reads this property: workers do not import the web framework.
        from airflow_trident.plugin.web_app import app

        return [{"app": app, "url_prefix": APP_PREFIX, "name": "Trident"}]

    @property
    def deadline_references(self) -> list[type[Any]]:  # type: ignore[override]
        # The scheduler reads this property if a DAG has such a deadline.
        from airflow_trident.tasks.deadline import OldestUncommittedDeadline

        return [OldestUncommittedDeadline]
