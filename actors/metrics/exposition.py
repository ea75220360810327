"""The text of `/metrics`, by prometheus-client (`kelek[metrics]`)."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from ...protocols.metrics.declaration import COUNTER, HISTOGRAM, METRICS, PREFIX, Metric, samples
from ..runtime.cluster_status import Row

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class RowCollector(Collector):
    """The metrics of one node in its newest rows."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.rows: Sequence[Row] = ()

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            family = _family(metric)
            for labels, value, buckets in samples(metric, self._node, self.rows):
                if isinstance(family, HistogramMetricFamily):
                    family.add_metric(labels, buckets, value)
                else:
                    family.add_metric(labels, value)
            if family.samples:
                yield family


def _family(metric: Metric) -> Family:
    name, labels = PREFIX + metric.name, metric.labels
    if metric.kind == COUNTER:
        return CounterMetricFamily(name, metric.help, labels=labels)
    if metric.kind == HISTOGRAM:
        return HistogramMetricFamily(name, metric.help, labels=labels)
    return GaugeMetricFamily(name, metric.help, labels=labels)


class Exposition:
    """Renders the text once for all requests between two reports."""

    def __init__(self, node: str) -> None:
        self._collector = RowCollector(node)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        self._text = b""

    def update(self, rows: Sequence[Row]) -> None:
        self._collector.rows, self._text = rows, b""

    def text(self) -> bytes:
        if not self._text:
            self._text = generate_latest(self._registry)
        return self._text
