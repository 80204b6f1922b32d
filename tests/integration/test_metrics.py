"""Metrics of real tasks, as a collector of OpenTelemetry gets them over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.http_server import serving
from tests.integration.test_airflow_tasks import PROGRAM, write_words

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

SPREADS = ("histogram", "exponential_histogram")
Points = dict[str, dict[str, float]]
"""Metric -> topology -> its last value, or how many there were."""


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.points: Points = {}
        self.spans: list[tuple[str, dict[str, object], int]] = []
        """Name, attributes, milliseconds; in the order in which they came."""

    def take(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        tags = {one.key: one.value.string_value for one in point.attributes}
                        value = point.count if kind in SPREADS else point.as_double or point.as_int
                        self.points.setdefault(metric.name, {})[tags.get("topology", "")] = value

    def take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    about = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                    took_ms = (span.end_time_unix_nano - span.start_time_unix_nano) // 1_000_000
                    self.spans.append((span.name, about, took_ms))


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/traces"):
            self.server.take_spans(ExportTraceServiceRequest.FromString(body))
        else:
            self.server.take(ExportMetricsServiceRequest.FromString(body))
        body = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the test's output."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with serving(Collector()) as server:
        yield server


def test_a_collector_gets_what_tasks_and_commands_did(airflow_home: AirflowHome, collector: Collector) -> None:
    write_words(airflow_home)
    airflow_home.options |= {
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_PORT": str(collector.server_address[1]),
        "NO_PROXY": "127.0.0.1",
    }
    airflow_home.python(PROGRAM + "tell([play(dag), play(dag)])")
    found = {name: points for name, points in collector.points.items() if name.startswith("airflow.trident.")}
    assert found, sorted(collector.points)
    told = {name.removeprefix("airflow.trident."): points["words"] for name, points in found.items()}
    assert (told["begun"], told["attempts"], told["committed"], told["rows"]) == (2, 2, 2, 8)
    assert told["pending"] == 0
    assert (told["processing"], told["commit"], told["lag"]) == (2, 2, 2)  # so many were timed
    assert told["bytes"] > 0
    collector.points.clear()
    airflow_home.python(PROGRAM + 'Path("fail-3").touch()\ntell(play(dag))')
    assert collector.points["airflow.trident.attempts"] == {"words": 2}
    assert collector.points["airflow.trident.failed"] == {"words": 1}
    airflow_home.airflow("trident", "skip", "words", "3", "--reason", "withdrawn")
    assert collector.points["airflow.trident.skipped"] == {"words": 1}


def test_a_collector_gets_a_span_for_each_phase_of_a_transaction(
    airflow_home: AirflowHome, collector: Collector
) -> None:
    write_words(airflow_home)
    airflow_home.options |= {
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}/v1/traces",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "NO_PROXY": "127.0.0.1",
    }
    times = airflow_home.python(
        PROGRAM
        + """
Path("fail-2").touch()
play(dag)
play(dag)
with ledger() as one:
    tell([tx.times_ms for tx in one.transactions()])
"""
    )
    spans = [span for span in collector.spans if span[0].startswith("trident.")]
    told = sorted((about["trident.txid"], name, about["trident.attempt"]) for name, about, _ in spans)
    ended = [(1, f"trident.{name}", 0) for name in ("commit", "processing", "waiting")]
    assert told == [*ended, *((2, "trident.processing", attempt) for attempt in (0, 1))]
    assert {about["trident.topology"] for _, about, _ in spans} == {"words"}
    took = {name: ms for name, about, ms in spans if about["trident.txid"] == 1}
    assert took["trident.commit"] == times[0]["COMMITTED"] - times[0]["COMMITTING"]
    assert took["trident.processing"] == times[0]["PROCESSED"] - times[0]["PROCESSING"]
