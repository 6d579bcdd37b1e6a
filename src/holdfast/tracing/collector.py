"""Sends spans to a collector, by OTLP over HTTP."""

import asyncio
import logging
import re
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

TIMEOUT_SECONDS = 5.0
"""How long sending one batch may take, including the exporter's retries."""
_PATH = "/v1/traces"
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^\"')]+)")
"""Finds the operating system's message within the exporter's nested errors."""


class _FirstMessage(logging.Handler):
    """Keeps the exporter's first message about a batch, which names the cause."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


class OtlpCollector:
    """A collector at an address. `problem` says why the collector did not accept the last batch. It
    is "" if the collector accepted it."""

    def __init__(self, url: str):
        self.url = url
        self.sent = 0
        self.problem = ""
        endpoint = url if url.endswith(_PATH) else url.rstrip("/") + _PATH
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_SECONDS)
        self._messages = _FirstMessage()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._messages)
        logger.propagate = False

    async def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Sends the spans. Returns whether the collector accepted them."""
        self._messages.text = ""
        result = await asyncio.to_thread(self._exporter.export, spans)
        if result is SpanExportResult.SUCCESS:
            self.problem = ""
            self.sent += len(spans)
            return True
        error = _SYSTEM_ERROR.search(self._messages.text)
        self.problem = error[1] if error else self._messages.text or "it took no spans"
        return False
