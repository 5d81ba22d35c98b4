"""A quantity over time in a bounded number of buckets, however long it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MOST_BUCKETS = 512
FIRST_WIDTH_SECONDS = 1.0


class Bucket(NamedTuple):
    """Values of one stretch of time: how many, their sum, lowest and highest."""

    values: int
    total: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return self.total / self.values

    def joined(self, other: Bucket) -> Bucket:
        """Both stretches as one."""
        return Bucket(
            self.values + other.values,
            self.total + other.total,
            min(self.low, other.low),
            max(self.high, other.high),
        )


@dataclass
class Series:
    """Buckets of `width` seconds by their number; the width doubles when there are too many."""

    width: float = FIRST_WIDTH_SECONDS
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def add(self, seconds: float, value: float | None) -> None:
        """Take a value at a time in s from the beginning; None is not measured and leaves a gap."""
        if value is None:
            return
        self._put(int(seconds // self.width), Bucket(1, value, value, value))
        while len(self.buckets) > MOST_BUCKETS:
            self.width *= 2
            finer, self.buckets = self.buckets, {}
            for number, bucket in finer.items():
                self._put(number // 2, bucket)

    def _put(self, number: int, bucket: Bucket) -> None:
        known = self.buckets.get(number)
        self.buckets[number] = bucket if known is None else known.joined(bucket)

    def whole(self) -> Bucket | None:
        """All values as one bucket, None where there are none."""
        whole: Bucket | None = None
        for bucket in self.buckets.values():
            whole = bucket if whole is None else whole.joined(bucket)
        return whole

    def points(self) -> list[tuple[float, Bucket]]:
        """Middle of each bucket in s, and the bucket, in order of time."""
        return [
            ((number + 0.5) * self.width, bucket) for number, bucket in sorted(self.buckets.items())
        ]
