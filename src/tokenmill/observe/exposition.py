"""Series as Prometheus and OpenMetrics text, under our names and under vLLM's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tokenmill.observe.series import Buckets, Histogram, Labels, Series, Values

# Under its default escaping prometheus_client turns `vllm:` into `vllm_` in this format. All our names are
# plain, so nothing is left to escape.
_openmetrics: Callable[[CollectorRegistry], bytes] = functools.partial(
    openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8
)
_Bucket = tuple[str, float] | tuple[str, float, Exemplar]


class SeriesCollector(Collector):
    """What prometheus_client renders. `model` and `instance` are labels of every series."""

    def __init__(self, series: Sequence[Series], model: str, instance: str) -> None:
        self._series = series
        self._common = (model, instance)

    def collect(self) -> Iterator[Metric]:
        for series in self._series:
            row = series.name
            yield _family(series, row.name, ("model", "instance"), row.labels, self._common)
            if row.alias:
                alias = _projected(series, tuple(row.alias_labels))
                names = tuple(row.alias_labels.values())
                yield _family(alias, row.alias, ("model_name", "engine"), names, self._common)


def render(collector: SeriesCollector, accept: str) -> tuple[bytes, str]:
    """The page and its content type: OpenMetrics if `accept` names it, else the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    kinds = (part.partition(";")[0].strip() for part in accept.split(","))
    if "application/openmetrics-text" in kinds:
        return _openmetrics(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _family(
    series: Series, name: str, common_names: Labels, label_names: Labels, common: tuple[str, str]
) -> Metric:
    help, names = series.name.help, (*common_names, *label_names)
    if isinstance(series, Histogram):
        histogram = HistogramMetricFamily(name, help, labels=names)
        for labels, buckets in series.values.items():
            histogram.add_metric((*common, *labels), _cumulative(series.edge_texts, buckets), buckets.total)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if series.name.kind == "counter":
        family = CounterMetricFamily(name, help, labels=names)
    else:
        family = GaugeMetricFamily(name, help, labels=names)
    for labels, value in series.values.items():
        family.add_metric((*common, *labels), value)
    return family


def _cumulative(edges: Iterable[str], buckets: Buckets) -> list[_Bucket]:
    rows: list[_Bucket] = []
    for place, (edge, count) in enumerate(zip(edges, accumulate(buckets.counts), strict=True)):
        if place in buckets.exemplars:
            value, trace = buckets.exemplars[place]
            rows.append((edge, count, Exemplar({"trace_id": trace.trace_id}, value, trace.wall)))
        else:
            rows.append((edge, count))
    return rows


def _projected(series: Series, kept: Labels) -> Series:
    """The series with these labels alone; what differs only in others is added up."""
    if kept == series.name.labels:
        return series
    places = [series.name.labels.index(label) for label in kept]
    if isinstance(series, Histogram):
        raise ValueError(f"{series.name.name}: a histogram's alias keeps its labels")
    result = Values(series.name)
    result.values = {} if kept else {(): 0.0}
    for labels, value in series.values.items():
        short = tuple(labels[place] for place in places)
        result.values[short] = result.values.get(short, 0.0) + value
    return result
