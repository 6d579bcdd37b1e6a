"""A collector of spans that a test starts. OpenTelemetry's own package decodes what it gets."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class FakeCollector:
    """The newest form of each span, by its id, and how often each came."""

    def __init__(self) -> None:
        self.spans: dict[bytes, Span] = {}
        self.times: Counter[bytes] = Counter()
        self.status = 200
        self.gate = threading.Event()
        """While it is not set, requests wait."""
        self.gate.set()
        self.url = ""

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.span_id] = span
                    self.times[span.span_id] += 1

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans.values() if span.name == name]


def fields(span: Span) -> dict[str, object]:
    """The attributes of a span or an event."""
    values = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        is_list = kind == "array_value"
        values[pair.key] = [each.string_value for each in value.values] if is_list else value
    return values


@contextmanager
def collecting() -> Iterator[FakeCollector]:
    collector = FakeCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.gate.wait(60)
            if collector.status == 200:
                collector.take(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
