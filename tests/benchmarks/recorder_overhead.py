"""What the recorder costs a training step: AMP on the CPU, 4 and 200 parameter tensors.

    python tests/benchmarks/recorder_overhead.py
    python tests/benchmarks/recorder_overhead.py --step-ms 20 --rounds 40

Two measurements, blocks with and without the recorder taken in turns in one process:

isolated    scale, backward of a trivial loss, step and update alone: the difference of medians is
            what the recorder adds to a step, in microseconds of wall clock. Bar: 25 us.
A/B         a real step (autocast, forward, backward, clip, scaler) of about the given length, in
            CPU time of this thread. Bar: a ratio of 1.01 at 5 ms.

The recorder's own account of its time is printed beside them. Bars are printed, not asserted: on a
machine that others load, figures jump about.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

MICROSECONDS_BAR, RATIO_BAR = 25.0, 1.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, nargs="+", default=[4, 200])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    # Where a run's ring lies by default: in memory.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        Path(folder).chmod(0o700)
        os.environ["TOPSMON_DIR"] = folder
        import torch

        from topsmon.training.recorder import install

        torch.set_num_threads(1)
        print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
        print(f"{'':<10}tensors   without      with  difference   own account")
        for tensors in options.tensors:
            isolated(torch, install, tensors, options.rounds)
        for tensors in options.tensors:
            real(torch, install, tensors, options.rounds, options.step_ms / 1e3)
    return 0


class Turns:
    """Alternates blocks without and with the recorder. All times in seconds."""

    def __init__(self, install, clock):
        self.install, self.clock = install, clock
        self.times = {False: [], True: []}
        self.own = []

    def run(self, rounds, block, steps):
        """Blocks of steps; with the recorder its own first steps, which describe, do not count."""
        recorder = self.install.install()
        block(max(steps, 50))
        for _ in range(rounds):
            for recorded in (False, True):
                if recorded:
                    recorder.patch()
                else:
                    recorder.patches.remove()
                block(max(2, steps // 10))
                before = recorder.seconds, recorder.steps
                self.times[recorded] += block(steps)
                if recorded:
                    done = recorder.steps - before[1]
                    self.own.append((recorder.seconds - before[0]) / done)
        errors = recorder.errors
        self.install.uninstall()
        assert errors == 0, f"{errors} errors"

    def medians(self):
        return [statistics.median(self.times[recorded]) for recorded in (False, True)]

    def timed(self, step, count):
        taken = []
        for _ in range(count):
            start = self.clock()
            step()
            taken.append(self.clock() - start)
        return taken


def isolated(torch, install, tensors, rounds):
    parameters = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(4)) for _ in range(tensors))
    for parameter in parameters:
        parameter.grad = torch.zeros(4)
    optimizer = torch.optim.SGD(parameters, 0.0)
    scaler = torch.amp.GradScaler("cpu")
    turns = Turns(install, time.perf_counter)

    def block(count):
        taken = []
        for _ in range(count):
            loss = parameters[0].sum()
            start = time.perf_counter()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            taken.append(time.perf_counter() - start)
        return taken

    turns.run(rounds, block, 300)
    without, with_it = (median * 1e6 for median in turns.medians())
    own = statistics.median(turns.own) * 1e6
    added = with_it - without
    print(
        f"isolated  {tensors:>7}{without:>7.1f} us{with_it:>7.1f} us{added:>+9.1f} us"
        f"{own:>11.1f} us"
        f"   {verdict(added <= MICROSECONDS_BAR)} the bar of {MICROSECONDS_BAR:.0f} us"
    )


def real(torch, install, tensors, rounds, seconds):
    torch.manual_seed(0)
    width, layers = 64, tensors // 2
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    turns = Turns(install, time.thread_time)
    batch = torch.randn(8, width)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(batch)
        loss = output.float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    while statistics.median(turns.timed(step, 5)) < seconds:
        batch = torch.cat([batch, batch[: max(1, len(batch) // 2)]])
    turns.run(rounds * 3, lambda count: turns.timed(step, count), 8)
    without, with_it = turns.medians()
    ratio, own = with_it / without, statistics.median(turns.own) * 1e6
    print(
        f"A/B       {tensors:>7}{without * 1e3:>7.2f} ms{with_it * 1e3:>7.2f} ms"
        f"{(with_it - without) * 1e6:>+9.1f} us{own:>11.1f} us"
        f"   ratio {ratio:.4f} {verdict(ratio <= RATIO_BAR)} {RATIO_BAR}"
    )


def verdict(held: bool) -> str:
    return "meets" if held else "is above"


if __name__ == "__main__":
    sys.exit(main())
