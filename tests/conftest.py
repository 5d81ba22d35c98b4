"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, on a loaded machine as on an idle one.
settings.register_profile(
    "topsmon", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("topsmon")
# Whoever started us in the background (&, nohup) had these ignored, and so our children would.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, lambda *_: None),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
# Hundreds of children start from this checkout: they need not compile it each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: half of the time would be its own."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def no_runs_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Training runs that really run on the machine must not show up in a test."""
    folder = tmp_path_factory.mktemp("training") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPSMON_DIR", str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread_of_torch() -> None:
    """Several workers share the cores: further threads of torch would only spin."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
