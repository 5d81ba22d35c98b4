"""All GPUs read once, in a forked child: a driver library that crashes costs the child alone.

After a crash each GPU that was not read gets a child of its own, so that one which crashes the
library does not hide the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from topsmon import events
from topsmon.devices import forked, pipes, startup
from topsmon.devices.gpu_worker import Setting
from topsmon.devices.gpus import Gpus
from topsmon.devices.selection import Found
from topsmon.devices.stamp import stamp

CALL_SECONDS = 0.5
"""A driver that needs longer for one call is not taken for one that answers slowly."""
GRACE_SECONDS = 0.3
"""The child keeps to the deadline by itself; one that is later by this is stuck as a whole."""
CRASHED_ONCE = "driver"
"""Subject of the problem of a library that crashed, and yet all GPUs were read."""
_COUNT = b'{"gpus":'
"""So begins the line with the number of GPUs, which is no event."""


@contextlib.contextmanager
def reading(
    setting: Setting, host: events.Host, deadline: float, last: float
) -> Iterator[GpuSnapshot]:
    """Start to read all GPUs by the monotonic time `deadline`; the caller goes on meanwhile.

    A driver that is slow, but answers, is waited for until `last`.
    """
    snapshot = GpuSnapshot(setting, host, deadline, last)
    with contextlib.ExitStack() as stack:
        try:
            snapshot.child = stack.enter_context(forked.child(snapshot.read))
        except OSError as error:
            snapshot.refused = error.strerror or str(error)
        yield snapshot


class GpuSnapshot:
    """The GPUs while they are read in a `child`; or `refused` says why there is none."""

    def __init__(self, setting: Setting, host: events.Host, deadline: float, last: float) -> None:
        self.child: forked.Child | None = None
        self.refused = ""
        self._setting = setting
        self._host = host
        self._started = time.monotonic()
        self._deadline = deadline
        self._last = last

    # The child ------------------------------------------------------------------------------------

    def read(self, write: Callable[[bytes], None], only_index: int | None = None) -> None:
        """Write the number of GPUs and what they tell, as lines; or what one of them tells."""
        writer = pipes.Writer(self._setting.pace, write)
        gpus = Gpus(
            dataclasses.replace(self._setting, emit=writer.emit, only_index=only_index),
            self._host,
            lambda count: write(b"%s%d}\n" % (_COUNT, count)),
        )
        gpus.thread.start()
        gpus.join(self._deadline)
        while time.monotonic() < self._last and gpus.answering(CALL_SECONDS):
            gpus.join(min(self._last, time.monotonic() + CALL_SECONDS / 10))
        gpus.check(0.0)
        if only_index is None:
            with contextlib.suppress(ValueError):  # it is told as a problem
                gpus.check_selection()

    # The parent -----------------------------------------------------------------------------------

    def collected(self) -> list[events.AnyEvent]:
        """Wait for the child; return what it told, and what it could not tell with the reason.

        ValueError where a device was asked for that is not here.
        """
        if self.child is None:
            return [self._problem(startup.not_started(self.refused))]
        outcome = self.child.outcome(self._last + GRACE_SECONDS)
        found = _events(outcome)
        for event in found:
            if isinstance(event, events.Problem) and event.subject == "selection":
                raise ValueError(event.message)
        if outcome.end is None:
            return found
        count = next((json.loads(line)["gpus"] for line in outcome.lines if _COUNT in line), 0)
        ends = dict.fromkeys(self._unread(found, count), outcome)
        if outcome.crashed:
            for index, one in self._one_by_one(ends):
                found += _events(one)
                ends[index] = one
        unread = {index: one for index, one in ends.items() if one.end is not None}
        for index, one in unread.items():
            found += self._told_unread(found, index, one)
        return [*found, self._trouble(outcome, count, unread)]

    def _one_by_one(self, indexes: Iterable[int]) -> list[tuple[int, forked.Outcome]]:
        """Read each of these GPUs in a child of its own, all of them at the same time."""
        with contextlib.ExitStack() as stack:
            children = []
            for index in indexes:

                def read(write: Callable[[bytes], None], index: int = index) -> None:
                    self.read(write, index)

                with contextlib.suppress(OSError):
                    children.append((index, stack.enter_context(forked.child(read))))
            return [(index, child.outcome(self._last + GRACE_SECONDS)) for index, child in children]

    def _unread(self, found: Iterable[events.AnyEvent], count: int) -> list[int]:
        """Indexes of the GPUs that nothing was read of, as far as they may be wanted."""
        told = {event.device for event in found if isinstance(event, events.DeviceSample)}
        told |= {
            event.device
            for event in found
            if isinstance(event, events.DeviceStatus) and event.condition != "ok"
        }
        named = _gpus(found)
        return [
            index
            for index in sorted({*range(count), *named})
            if (
                named[index].device not in told
                if index in named
                else self._setting.selection.may_want(Found(index, None))
            )
        ]

    def _told_unread(
        self, found: Iterable[events.AnyEvent], index: int, outcome: forked.Outcome
    ) -> Iterator[events.AnyEvent]:
        """The state of a GPU that could not be read; a row for one that is not even named."""
        device = _gpus(found).get(index)
        if device is None:
            key = f"gpu-{index}"
            device = events.Device(
                **stamp(f"{self._setting.facts.hostname}/{key}"),
                device=key,
                kind="gpu",
                index=index,
                name=f"NVIDIA GPU {index} (name unknown)",
            )
            yield device
        detail = "driver not answering"
        if outcome.end:
            who = "the driver library crashed" if outcome.crashed else "its reader ended early"
            detail = f"{who} ({_how(outcome)})"
        yield events.DeviceStatus(
            **stamp(device.source),
            device=device.device,
            condition="error" if outcome.end else "stalled",
            detail=detail,
            since=time.monotonic(),
        )

    def _trouble(
        self, outcome: forked.Outcome, count: int, unread: Collection[int]
    ) -> events.Problem:
        """The end of the child that was to read all GPUs, and what that has cost."""
        if not outcome.end:
            waited = time.monotonic() - self._started
            return self._problem(startup.not_answering("its library", waited))
        whole = bool(count) and not unread
        cost = "everything was read in a second try" if whole else "no GPU could be read"
        if unread:
            cost = f"GPU {', '.join(map(str, unread))} could not be read"
        if not outcome.crashed:
            return self._problem(startup.ended(_how(outcome), cost))
        # Where nothing is missing it is worth a word, and no failure.
        return self._problem(
            startup.crashed(_how(outcome), cost), CRASHED_ONCE if whole else "nvml"
        )

    def _problem(self, trouble: startup.Trouble, subject: str = "nvml") -> events.Problem:
        return events.Problem(
            **stamp(self._setting.facts.hostname),
            subject=subject,
            code=trouble.code,
            message=trouble.message,
            remedy=trouble.remedy,
        )


def _events(outcome: forked.Outcome) -> list[events.AnyEvent]:
    decoder = events.LineDecoder()
    decoded = (decoder.decode(line) for line in outcome.lines if not line.startswith(_COUNT))
    return [event for event in decoded if event is not None]


def _gpus(found: Iterable[events.AnyEvent]) -> dict[int, events.Device]:
    return {event.index: event for event in found if isinstance(event, events.Device)}


def _how(outcome: forked.Outcome) -> str:
    """How a child ended: "SIGSEGV in nvmlInitWithFlags"."""
    call = next((name for name in outcome.frames if name.startswith("nvml")), None)
    return outcome.end or "" if call is None else f"{outcome.end} in {call}"
