"""Last words: exceptions that pass a scaler, the one that ends the run, and the exit code.

No signal handler is installed: whoever sees the process gone tells of a signal.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

MESSAGE_MAX = 600
INTERRUPTED = 130
"""What a shell tells of a program that SIGINT has ended, as an uncaught KeyboardInterrupt does."""


class Endings:
    """What is known of how this process ends. It outlives the other hooks, and raises nothing."""

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self._told = 0
        self._raised = False
        self._exit_code: int | None = None
        self._exit_words = ""
        self._exit_at = -1
        self._script = _script()

    def passing(self, error: BaseException) -> None:
        """An exception passes through a scaler; what becomes of it is the run's affair.

        One that passes two methods, such as step() and unscale_() in it, is told once.
        """
        if isinstance(error, Exception) and id(error) != self._told:
            self._told = id(error)
            kind, message = _words(error)
            self.recorder.event("exception", message, (kind,), {"handled": 1.0})

    def uncaught(self, error: BaseException) -> None:
        """An exception ends the run."""
        if isinstance(error, SystemExit):
            return
        self._raised = True
        self._exit_code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        self._exit_at = self.recorder.steps
        kind, message = _words(error)
        ring = self.recorder.ring
        if ring is not None:
            ring.event("exception", self.recorder.steps + 1, message, (kind,), {"handled": 0.0})

    def exiting(self, status: object = None) -> None:
        """sys.exit() was called. It is only an exception, which somebody may still catch."""
        self._exit_code = status if isinstance(status, int) else int(status is not None)
        self._exit_at = self.recorder.steps
        # The interpreter prints anything else and ends with 1.
        self._exit_words = "" if status is None or isinstance(status, int) else str(status)

    def ended(self) -> None:
        """The interpreter ends: complete what can be completed without waiting, say goodbye."""
        recorder = self.recorder
        if recorder.ring is None:
            return
        if recorder.on:
            recorder.deliver()
            recorder.call(recorder.keeper.look)
        # Where another hook was put in the place of ours, the interpreter still remembers.
        last = getattr(sys, "last_value", None)
        if not self._raised and last is not None:
            self.uncaught(last)
        # Steps after the call: somebody has caught it and gone on.
        known = self._exit_code is not None and self._exit_at == recorder.steps
        code = self._exit_code if known else None
        # Python takes __file__ from a script that ran to its end, not from one that raised
        # SystemExit; that exception is gone by now, and with it the code.
        same_script = self._script is not None and _main() == self._script
        if code is None and same_script and _script() is None and _at_the_end():
            code = 0
        message = "exit code not known" if code is None else f"exit code {code}"
        if known and self._exit_words:
            message += f": {self._exit_words[:MESSAGE_MAX]}"
        values = {} if code is None else {"exit_code": float(code)}
        recorder.ring.event("end", recorder.steps, message, (), values)
        recorder.ring.close()


def patch(recorder: Recorder) -> None:
    """Watch the end of this process."""
    for name, install in (
        ("excepthook", _chain_excepthook),
        ("exit", _note_exit_code),
        ("atexit", _register_end),
    ):
        recorder.end_patches.once(name, functools.partial(install, recorder))


def _quietly(recorder: Recorder, method: str) -> Callable[..., None]:
    def quiet(*args: Any) -> None:
        try:
            getattr(recorder.endings, method)(*args)
        except Exception:  # noqa: BLE001 - nothing may disturb the end of the run
            recorder.errors += 1

    return quiet


def _chain_excepthook(recorder: Recorder) -> Callable[[], None]:
    previous, tell = sys.excepthook, _quietly(recorder, "uncaught")

    @functools.wraps(previous)
    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        tell(error)
        previous(kind, error, trace)

    sys.excepthook = excepthook

    def undo() -> None:
        if sys.excepthook is excepthook:
            sys.excepthook = previous

    return undo


def _note_exit_code(recorder: Recorder) -> Callable[[], None]:
    """An exit code is otherwise known to the parent alone."""
    previous, tell = sys.exit, _quietly(recorder, "exiting")

    @functools.wraps(previous)
    def exit_noted(*args: Any) -> Any:
        tell(*args)
        previous(*args)

    sys.exit = exit_noted

    def undo() -> None:
        if sys.exit is exit_noted:
            sys.exit = previous

    return undo


def _register_end(recorder: Recorder) -> Callable[[], None]:
    ended = _quietly(recorder, "ended")
    atexit.register(ended)
    return functools.partial(atexit.unregister, ended)


def _main() -> int | None:
    main = sys.modules.get("__main__")
    return None if main is None else id(main)


def _script() -> int | None:
    """The identity of __main__ where it is a script with its __file__; not of -m, -c or stdin."""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    runs_script = main.get("__name__") == "__main__" and main.get("__spec__") is None
    return _main() if runs_script and "__file__" in main else None


def _at_the_end() -> bool:
    """True where nothing has called `ended` but the interpreter; multiprocessing calls it too."""
    caller = sys._getframe(2).f_back  # noqa: SLF001 - of the function that _quietly has made
    return caller is None


def _words(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error)[:MESSAGE_MAX]
