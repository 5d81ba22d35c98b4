"""A child that records a run as fast as it can until it is killed, or as its argument says."""

from __future__ import annotations

import os
import sys
import time

from ring_runs import new_run, values, write_steps

from topsmon.training.recorder import layout


def endless() -> None:
    writer = new_run()
    print(writer.path, flush=True)
    step = 0
    while True:
        step += 1
        # Every field follows from the step: a record mixed of two would be seen.
        writer.write(values(step, loss=step * 0.5, scale=float(step), skipped=step, growths=step))


def fork() -> None:
    writer = new_run(rank=0)
    write_steps(writer, 1, 5, loss=1.0)
    child = os.fork()
    if child == 0:
        quiet = writer.quiet
        write_steps(writer, 6, 50, loss=9.0)
        writer.event("end", 50)
        writer.close()
        own = new_run(rank=1)
        write_steps(own, 1, 2, loss=2.0)
        os._exit(0 if quiet else 1)
    _, status = os.waitpid(child, 0)
    write_steps(writer, 6, 7, loss=1.0)
    print(status, writer.path, flush=True)


def rank() -> None:
    writer = new_run()
    write_steps(writer, 1, 10 + int(os.environ["RANK"]), flags=layout.HAS_SCALER)
    writer.close()


def sleep() -> None:
    writer = new_run()
    write_steps(writer, 1, 20, loss=0.5, step_seconds=0.01)
    print(writer.path, flush=True)
    time.sleep(60)


if __name__ == "__main__":
    {"endless": endless, "fork": fork, "rank": rank, "sleep": sleep}[sys.argv[1]]()
