"""Calls beside the event loop: their results come back, and nobody waits for a lost one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from topsmon.exporters.aside import aside


async def test_results_and_errors_come_back() -> None:
    assert await aside(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await aside(divmod, 7, 0)


async def test_a_call_that_is_given_up_does_no_harm() -> None:
    go_on, threads = threading.Event(), []

    def call() -> None:
        threads.append(threading.current_thread())
        go_on.wait(60)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(aside(call), 0.01)
    go_on.set()
    while not threads or threads[0].is_alive():
        await asyncio.sleep(0.01)
    assert await aside(divmod, 7, 2) == (3, 1)


@pytest.mark.real
def test_the_end_of_the_program_waits_for_no_call() -> None:
    script = (
        "import asyncio, time\n"
        "from topsmon.exporters.aside import aside\n"
        "async def main():\n"
        "    asyncio.create_task(aside(time.sleep, 600))\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
