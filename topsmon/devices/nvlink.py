"""NVLink of one GPU: how many links are up, what goes over all of them, their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topsmon.devices import nvml
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.rates import Rate
from topsmon.devices.reader import ALL_LINKS, FieldId, Number, Reader

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h."""
FASTEST = 4e12
"""Bytes per second and direction that no GPU reaches: sixth-generation NVLink has 1.8e12."""
_LINK_COUNT: FieldId = (91, 0)
_NONE = Unavailable("no NVLink on this GPU", nvml.NOT_SUPPORTED)
_TRANSMIT = "nvlink_transmit_bytes_per_second"
_RECEIVE = "nvlink_receive_bytes_per_second"
RATES = (_TRANSMIT, _RECEIVE)
FIELDS = ("nvlink_links", "nvlink_links_up", *RATES, "nvlink_errors")

_KIB, _BYTES = (138, 139, 1024.0), (202, 204, 1.0)
"""Fields of payload sent and received, and their unit in bytes; the second are NVLink 5's."""
_ERRORS: tuple[tuple[FieldId, ...], ...] = (
    ((38, 0), (45, 0), (52, 0), (59, 0)),  # CRC in flits and in data, replays, recoveries
    ((208, ALL_LINKS), (211, ALL_LINKS), (215, ALL_LINKS)),  # received, integrity, recoveries
)
"""Error counters over all links, of NVLink 1 to 4 and of NVLink 5."""

Answers = Mapping[FieldId, Number | Unavailable]
Readings = dict[str, Number | Unavailable]


class NvLinks:
    """The links of one GPU. Call `look` first: without a link nothing else is asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._count: int | None = None
        self._form = 0
        self._error_form = 0
        self._rates = (Rate(FASTEST), Rate(FASTEST))

    def look(self) -> Readings:
        """Count the links and those that are up."""
        if self._count is None:
            self._count = self._links()
        if self._count == 0:
            return dict.fromkeys(FIELDS, _NONE)
        states = [self._state(link) for link in range(self._count)]
        known = [state for state in states if not isinstance(state, Unavailable)]
        if not known:
            return {"nvlink_links": self._count, "nvlink_links_up": states[0]}
        return {"nvlink_links": self._count, "nvlink_links_up": sum(map(bool, known))}

    def _links(self) -> int:
        """Return the number of links; drivers that do not tell it are asked for each."""
        told = self._reader.fields((_LINK_COUNT,)).get(_LINK_COUNT)
        if told is not None and not isinstance(told, Unavailable):
            return int(told) if 0 <= told <= MAX_LINKS else 0
        count = 0
        while count < MAX_LINKS and not isinstance(self._state(count), Unavailable):
            count += 1
        return count

    def _state(self, link: int) -> int | Unavailable:
        state: int | Unavailable = self._reader.read(
            f"nvlink {link}", Call("nvmlDeviceGetNvLinkState", (link,))
        )
        return state

    # Traffic --------------------------------------------------------------------------------------

    def traffic_fields(self) -> tuple[FieldId, ...]:
        """Return the fields that `traffic` wants answers of."""
        fields = self._directions()
        return () if fields is None else (*fields[0], *fields[1])

    def _directions(self) -> tuple[tuple[FieldId, ...], tuple[FieldId, ...], float] | None:
        """Fields of what is sent and received, in the form that this driver knows; or None."""
        if not self._count or self._form >= 4:
            return None
        transmit, receive, unit = (_KIB, _BYTES)[self._form % 2]
        scopes = (ALL_LINKS,) if self._form < 2 else range(self._count)
        sent = tuple((transmit, scope) for scope in scopes)
        return sent, tuple((receive, scope) for scope in scopes), unit

    def traffic(self, answers: Answers, now: float) -> Readings:
        """Return the rates up to `answers`, which were read at `now`; nothing without news."""
        fields = self._directions()
        if fields is None:
            return {}
        sums = [_sum(fields[0], answers), _sum(fields[1], answers)]
        if all(isinstance(one, Unavailable) and one.kind == "unsupported" for one in sums):
            self._form += 1
        readings: Readings = {}
        for name, total, rate in zip(RATES, sums, self._rates, strict=True):
            if isinstance(total, Unavailable):
                rate.forget()
                readings[name] = total
            elif total is not None:
                readings[name] = rate.update(total * fields[2], now)
        return readings

    # Errors ---------------------------------------------------------------------------------------

    def error_fields(self) -> tuple[FieldId, ...]:
        """Return the fields that `errors` wants answers of."""
        return _ERRORS[self._error_form] if self._count else ()

    def errors(self, answers: Answers) -> Readings:
        """Return the sum of the error counters since the driver was loaded."""
        fields = self.error_fields()
        total = _sum(fields, answers) if fields else None
        if total is None:
            return {}
        unsupported = isinstance(total, Unavailable) and total.kind == "unsupported"
        if unsupported and self._error_form + 1 < len(_ERRORS):
            self._error_form += 1
        return {"nvlink_errors": total}


def _sum(fields: Sequence[FieldId], answers: Answers) -> Number | Unavailable | None:
    """Sum what was answered; None without news of a field that counts, else why there is none."""
    if any(field not in answers for field in fields):
        return None
    values = [answers[field] for field in fields]
    known = [value for value in values if not isinstance(value, Unavailable)]
    if known:
        return sum(known)
    return next(value for value in values if isinstance(value, Unavailable))
