"""What a judge over several ranks looks at, and the shape of its answers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from topsmon import ceilings, events
from topsmon.checks.context import Moment
from topsmon.checks.model import Check
from topsmon.launcher.document import RankReport, Ranks
from topsmon.units import plain

ALL = "all ranks"


@dataclass(frozen=True)
class RanksContext:
    """One check over all ranks. `source` is the host that judges."""

    document: Ranks
    check: Check
    moment: Moment
    source: str = ""

    def result(
        self,
        verdict: events.CheckState,
        *,
        label: str = ALL,
        device: str | None = None,
        **more: Any,
    ) -> events.CheckResult:
        """Return a result; an experimental check warns where another would fail."""
        check = self.check
        fields: dict[str, Any] = {
            "title": check.title,
            "basis": check.basis,
            "experimental": check.experimental,
            "lower_is_better": check.lower_is_better,
            **more,
        }
        if verdict == "FAIL" and fields["experimental"]:
            verdict = "WARN"
        if verdict in ("WARN", "FAIL"):
            fields.setdefault("remedy", check.remedy)
        return events.CheckResult(
            time=self.moment.time,
            monotonic=self.moment.monotonic,
            source=self.source,
            device=device,
            label=label,
            check=check.id,
            state=verdict,
            **fields,
        )

    def identity(self, report: RankReport) -> tuple[str, ...]:
        """Which piece of hardware a rank has: host, device, UUID."""
        uuid = report.device.uuid if report.device is not None else None
        return tuple(plain(word, 100) for word in (report.place, uuid) if word)

    def ceilings(self) -> events.Ceilings | None:
        """The ceilings that all ranks' GPUs share, None on processors and for unequal boards."""
        found = {_ceilings_key(report) for report in self.document.ranks}
        if len(found) != 1 or None in found:
            return None
        key = found.pop()
        assert key is not None
        return _ceilings(*key)


def _ceilings_key(report: RankReport) -> tuple[str, str | None, int | None, int | None] | None:
    device = report.device
    if device is None or device.kind != "gpu":
        return None
    return device.name, device.compute_capability, device.sm_count, device.memory_total_bytes


@functools.cache
def _ceilings(
    name: str, capability: str | None, sm_count: int | None, memory_bytes: int | None
) -> events.Ceilings:
    """The ceilings of a board by what torch tells of it: it may be another machine's."""
    device = events.Device(
        time=0.0,
        monotonic=0.0,
        source="",
        device="",
        kind="gpu",
        index=0,
        name=name,
        compute_capability=capability,
        sm_count=sm_count,
        memory_total_bytes=memory_bytes,
    )
    return ceilings.for_device(device, sm_count=sm_count)
