"""The one way to the driver: every call through nvidia-ml-py, every failure a typed answer.

`Driver.call` and `Driver.query` never raise for what a driver can do: they return the value or
`Unavailable`. `Capabilities` adds memory per device and metric: what the driver lacks is not asked
again, what fails once does not flicker. Codes and names are those of NVIDIA's nvml.h.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
UNKNOWN = 999

Kind = Literal["unsupported", "permission", "lost", "restart", "transient", "implausible"]

_KINDS: dict[int, Kind] = {
    NOT_SUPPORTED: "unsupported",
    FUNCTION_NOT_FOUND: "unsupported",
    ARGUMENT_VERSION_MISMATCH: "unsupported",
    DEPRECATED: "unsupported",
    NO_PERMISSION: "permission",
    GPU_IS_LOST: "lost",
    GPU_NOT_FOUND: "lost",
    UNINITIALIZED: "restart",
    DRIVER_NOT_LOADED: "restart",
    LIB_RM_VERSION_MISMATCH: "restart",
}

_WORDS: dict[int, str] = {
    UNINITIALIZED: "the driver was reloaded (NVML Uninitialized)",
    INVALID_ARGUMENT: "invalid argument (NVML InvalidArgument)",
    NOT_SUPPORTED: "not supported by this device (NVML NotSupported)",
    NO_PERMISSION: "no permission (NVML NoPermission)",
    NOT_FOUND: "not found (NVML NotFound)",
    INSUFFICIENT_SIZE: "the answer outgrew its buffer (NVML InsufficientSize)",
    8: "external power is not attached (NVML InsufficientPower)",
    DRIVER_NOT_LOADED: "the kernel module is not loaded (NVML DriverNotLoaded)",
    TIMEOUT: "timed out (NVML Timeout)",
    11: "interrupt problem (NVML IrqIssue)",
    14: "the board's infoROM is corrupted (NVML CorruptedInforom)",
    GPU_IS_LOST: "GPU is lost (NVML GpuIsLost)",
    16: "GPU requires a reset (NVML ResetRequired)",
    17: "blocked by the operating system (NVML OperatingSystem)",
    LIB_RM_VERSION_MISMATCH: "driver library and kernel module differ (NVML LibRmVersionMismatch)",
    20: "the driver is out of memory (NVML Memory)",
    21: "no data (NVML NoData)",
    GPU_NOT_FOUND: "GPU not found (NVML GpuNotFound)",
    UNKNOWN: "unknown driver error (NVML Unknown)",
}

PERMISSION_RETRY_SECONDS = 60.0
STRIKES = 3
STRIKE_SECONDS = 2.5
"""A metric that failed `STRIKES` times in a row over at least this time is given up for a while."""
STRIKE_RETRY_SECONDS = 10.0


@dataclass(frozen=True)
class Unavailable:
    """Why there is no value: words for people, NVML's code, and what may be done about it."""

    reason: str
    code: int | None = None
    kind: Kind = "unsupported"


class Call(NamedTuple):
    """A function of nvidia-ml-py by name, and its arguments after the handle."""

    name: str
    arguments: tuple[object, ...] = ()


class GpuLostError(Exception):
    """The device fell off the bus; its handle must not be used again."""


class HandleRefusedError(Exception):
    """The driver gives no handle for a device; `answer` says why."""

    def __init__(self, answer: Unavailable) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class DriverGoneError(Exception):
    """The driver was unloaded, reloaded or replaced: a new process is needed."""

    def __init__(self, answer: Unavailable) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Watch:
    """The driver call that a thread has out, and since when; read by the watchdog.

    `answered` is called, under the watch's lock, when a call that was reported as stalled returns.
    """

    def __init__(
        self,
        answered: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._answered = answered
        self._clock = clock
        self._name: str | None = None
        self._since = 0.0
        self._stalled = False

    def begin(self, name: str) -> None:
        """Note that a call goes out."""
        with self._lock:
            self._name, self._since = name, self._clock()

    def end(self) -> None:
        """Note that the call came back."""
        with self._lock:
            self._name = None
            stalled, self._stalled = self._stalled, False
            if stalled and self._answered is not None:
                self._answered()

    def waited(self) -> float:
        """Seconds since the call went out that has not come back, 0 where none is out."""
        with self._lock:
            return 0.0 if self._name is None else self._clock() - self._since

    def check(self, limit_seconds: float, report: Callable[[str, float], None]) -> bool:
        """Call `report(function, since)` if a call is out for longer than the limit.

        `report` runs under the lock, so that "stalled" always precedes "answered".
        """
        with self._lock:
            if self._name is None or self._clock() - self._since < limit_seconds:
                return False
            self._stalled = True
            report(self._name, self._since)
            return True


class Driver:
    """nvidia-ml-py, or anything with its functions and error classes, made safe to call."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._errors: tuple[type[Exception], ...] = (binding.NVMLError,)
        # Not a subclass of NVMLError: raised where a driver lacks the newest symbol.
        self._mismatch: type[Exception] | None = getattr(binding, "NVMLLibraryMismatchError", None)
        if self._mismatch is not None:
            self._errors += (self._mismatch,)

    def call(self, watch: Watch, name: str, *arguments: object) -> Any | Unavailable:
        """Call one function. Bytes that are no UTF-8 come back as `bytes`."""
        function = getattr(self.binding, name, None)
        if function is None:
            return Unavailable(
                f"nvidia-ml-py is too old: it has no {name}", FUNCTION_NOT_FOUND, "unsupported"
            )
        watch.begin(name)
        try:
            return function(*arguments)
        except UnicodeDecodeError as error:
            return bytes(error.object)
        except self._errors as error:
            return self._explain(name, error)
        except (ctypes.ArgumentError, TypeError, ValueError, AttributeError) as error:
            return Unavailable(f"{name}: {error}", None, "unsupported")
        finally:
            watch.end()

    def _explain(self, name: str, error: Exception) -> Unavailable:
        if self._mismatch is not None and isinstance(error, self._mismatch):
            return Unavailable(f"driver too old for {name}", FUNCTION_NOT_FOUND, "unsupported")
        return explain(int(getattr(error, "value", UNKNOWN)), name)

    def query(self, watch: Watch, calls: Sequence[Call], handle: object) -> Any | Unavailable:
        """Try the calls in order until one is supported; return its answer."""
        return self.first_supported(watch, calls, handle)[0]

    def first_supported(
        self, watch: Watch, calls: Sequence[Call], handle: object
    ) -> tuple[Any | Unavailable, int]:
        """As `query`, with the index of the call that gave the answer."""
        refused: Unavailable | None = None
        for index, (name, arguments) in enumerate(calls):
            answer = self.call(watch, name, handle, *arguments)
            if isinstance(answer, Unavailable) and answer.code == INSUFFICIENT_SIZE:
                answer = self.call(watch, name, handle, *arguments)
            if not isinstance(answer, Unavailable) or answer.kind != "unsupported":
                return answer, index
            # "Not supported" says more than "no such function in this driver".
            if refused is None or refused.code != NOT_SUPPORTED:
                refused = answer
        return refused or Unavailable("no function given"), 0


def explain(code: int, name: str) -> Unavailable:
    """Return the answer for an NVML return code of function `name`."""
    if code == FUNCTION_NOT_FOUND:
        reason = f"driver too old: it has no {name}"
    else:
        reason = _WORDS.get(code, f"driver error (NVML {code})")
    return Unavailable(reason, code, _KINDS.get(code, "transient"))


@dataclass
class _Memory:
    """What is known of one metric: the call that works, failures in a row, when to ask again."""

    first: int = 0
    strikes: int = 0
    failing_since: float = 0.0
    off: Unavailable | None = None
    retry_at: float = 0.0
    last: Any = None


class Capabilities:
    """What one device can answer. Use from its own thread only.

    `unsupported_words` replaces the reason of NotSupported where the platform explains it.
    """

    def __init__(self, driver: Driver, watch: Watch) -> None:
        self.driver = driver
        self.watch = watch
        self.unsupported_words: str | None = None
        self._memory: dict[str, _Memory] = {}

    def read(
        self, metric: str, calls: Sequence[Call], handle: object, now: float
    ) -> Any | Unavailable:
        """Ask for a metric unless it is known to be off; `now` is monotonic seconds.

        A transient failure returns the last good value until it has lasted (`STRIKES`).
        Raises GpuLostError and DriverGoneError: after either the handle is void.
        """
        off = self.off(metric, now)
        if off is not None:
            return off
        memory = self._memory.setdefault(metric, _Memory())
        answer, index = self.driver.first_supported(self.watch, calls[memory.first :], handle)
        if not isinstance(answer, Unavailable):
            memory.first += index
            memory.last = answer
            self.accept(metric)
            return answer
        refused = self.refuse(metric, answer, now)
        if refused is not None:
            return refused
        return answer if memory.last is None else memory.last

    def off(self, metric: str, now: float) -> Unavailable | None:
        """Return why a metric is not to be asked for now, None where it is."""
        memory = self._memory.get(metric)
        return memory.off if memory is not None and now < memory.retry_at else None

    def accept(self, metric: str) -> None:
        """Note that a metric was answered."""
        memory = self._memory.setdefault(metric, _Memory())
        memory.strikes, memory.off, memory.retry_at = 0, None, 0.0

    def skip(self, metric: str, count: int) -> None:
        """Do not try the first `count` calls of a metric again: their answers make no sense."""
        self._memory.setdefault(metric, _Memory()).first = count

    def refuse(self, metric: str, answer: Unavailable, now: float) -> Unavailable | None:
        """Note that a metric was refused; return why it is off now, None for a passing failure.

        Raises GpuLostError and DriverGoneError.
        """
        memory = self._memory.setdefault(metric, _Memory())
        if answer.kind == "lost":
            raise GpuLostError(answer.reason)
        if answer.kind == "restart":
            raise DriverGoneError(answer)
        if answer.kind == "unsupported":
            if answer.code == NOT_SUPPORTED and self.unsupported_words is not None:
                answer = Unavailable(self.unsupported_words, answer.code, answer.kind)
            memory.off, memory.retry_at = answer, float("inf")
            return answer
        if answer.kind == "permission":
            memory.off, memory.retry_at = answer, now + PERMISSION_RETRY_SECONDS
            return answer
        if memory.strikes == 0:
            memory.failing_since = now
        memory.strikes += 1
        if memory.strikes < STRIKES or now - memory.failing_since < STRIKE_SECONDS:
            return None
        memory.off, memory.retry_at = answer, now + STRIKE_RETRY_SECONDS
        return answer
