"""Metric families in the making: what is not known adds no series, and no series comes twice.

Prometheus refuses a whole scrape for one series that is there twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from topsmon.units import plain

PREFIX = "topsmon_"
LABEL_LENGTH = 200


class Families:
    """Families by name, in the order of first mention. Names are given without `PREFIX`.

    A value that is None or not finite adds nothing. A label that is None or "" is left out: to
    Prometheus both mean the same.
    """

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    def __iter__(self) -> Iterator[Metric]:
        """The families that have a series."""
        return iter(self._families.values())

    def gauge(
        self, name: str, text: str, labels: Mapping[str, object], value: float | None
    ) -> None:
        """Add a value that may go up and down."""
        self._add(name, "", "gauge", text, labels, value)

    def counter(
        self, name: str, text: str, labels: Mapping[str, object], value: float | None
    ) -> None:
        """Add a count that only grows, until it begins anew. `name` is without "_total"."""
        self._add(name, "_total", "counter", text, labels, value)

    def info(self, name: str, text: str, labels: Mapping[str, object]) -> None:
        """Add an identity: labels on a constant 1. `name` is without "_info"."""
        self._add(name, "_info", "info", text, labels, 1)

    def _add(
        self,
        name: str,
        ending: str,
        kind: str,
        text: str,
        labels: Mapping[str, object],
        value: float | None,
    ) -> None:
        if value is None or not math.isfinite(value):
            return
        written = {
            key: plain(str(label), LABEL_LENGTH)
            for key, label in labels.items()
            if label is not None and label != ""
        }
        series = (name, tuple(sorted(written.items())))
        if series in self._seen:
            return
        self._seen.add(series)
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Metric(PREFIX + name, text, kind)
        family.add_sample(PREFIX + name + ending, written, float(value))
