"""Calls beside the event loop: their results come back, and nobody waits for a lost one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from topsmon.exporters.aside import aside


async def test_results_and_errors_come_back() -> None:
    assert await aside(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await aside(divmod, 7, 0)


async def test_a_call_that_is_given_up_does_no_harm() -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(aside(__import__("time").sleep, 0.1), 0.01)
    await asyncio.sleep(0.2)


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
