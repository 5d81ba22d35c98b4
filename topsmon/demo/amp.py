"""A small transformer trained in FP16 with autocast and GradScaler, healthy or broken on purpose.

It learns to continue a noisy sequence of tokens, each of which follows from the one before. Runs on
any device of torch, the CPU included. What `--break` does, from one step on, are faults of real
training scripts:

forward   a layer takes the logarithm of a factor that has become negative: NaN from that layer on
backward  a loss weight that doubles every second step: finite losses, gradients that leave FP16
clip      gradients are clipped while they still are multiplied by the loss scale
scale     two hundred batches with a NaN in the data: the loss scale halves down to 0, and the next
          clean batch ruins the weights
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VOCABULARY, TOKENS, BATCH = 32, 16, 8
WIDTH, HEADS, LAYERS = 32, 2, 2
NOISE = 0.1
MAX_NORM = 5.0
GROWTH_INTERVAL = 200
"""A tenth of torch's default, so that growth can be watched."""
STEPS_PER_SECOND = 20.0
PRINT_SECONDS = 0.4
BREAK_STEP = 100
BAD_BATCHES = 200
"""More than the 166 skips that take a scale of 65536 to 0."""
BREAKS = ("forward", "backward", "clip", "scale")


class Sharpness(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Multiply scores by the logarithm of a factor, which nothing keeps positive."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((), 2.718281828))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores sharpened: NaN for a negative factor."""
        return scores * torch.log(self.factor)


class Model(nn.Module):  # type: ignore[misc]  # as above
    """Tokens and a measured signal beside them in, scores of the next tokens out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.signal = nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.sharpness = Sharpness()
        self.head = nn.Linear(WIDTH, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, tokens, vocabulary)."""
        hidden = self.tokens(tokens) + self.signal(signal)
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return self.head(self.sharpness(hidden))


class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]  # as above
    """Endless batches: tokens, signal, next tokens. Some hold a NaN if told so."""

    def __init__(self, bad_from: int | None) -> None:
        self.bad_from = bad_from
        self.random = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Make one batch after the other."""
        step = 0
        while True:
            step += 1
            sequence = [torch.randint(VOCABULARY, (BATCH,), generator=self.random)]
            for _ in range(TOKENS):
                noise = torch.rand(BATCH, generator=self.random) < NOISE
                anything = torch.randint(VOCABULARY, (BATCH,), generator=self.random)
                sequence.append(torch.where(noise, anything, (5 * sequence[-1] + 7) % VOCABULARY))
            tokens = torch.stack(sequence, dim=1)
            signal = torch.randn(BATCH, TOKENS, 1, generator=self.random)
            if self.bad_from is not None and 0 <= step - self.bad_from < BAD_BATCHES:
                signal[0, 0, 0] = float("nan")
            yield tokens[:, :-1], signal, tokens[:, 1:]


def train(options: argparse.Namespace) -> None:
    """Train until told to stop."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small matrices: more threads only burn CPU time
    broken, start = options.broken, options.break_step
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, growth_interval=GROWTH_INTERVAL)
    loader = torch.utils.data.DataLoader(
        Batches(start if broken == "scale" else None), batch_size=None
    )
    began = printed = time.monotonic()
    steps_printed = 0
    for step, batch in enumerate(loader, 1):
        tokens, signal, following = (part.to(device) for part in batch)
        is_broken = broken is not None and step >= start
        if is_broken and broken == "forward":
            model.sharpness.factor.fill_(-0.1)
        with torch.autocast(device.type, torch.float16):
            scores = model(tokens, signal)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        if is_broken and broken == "backward":
            loss = loss * 2.0 ** min((step - start) // 2, 60)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not (is_broken and broken == "clip"):
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        now = time.monotonic()
        if step == 1 or now - printed >= PRINT_SECONDS:
            rate = (step - steps_printed) / max(now - printed, 1e-9)
            _say(step, loss.item(), scaler.get_scale(), rate if step > 1 else None)
            printed, steps_printed = now, step
        if step == options.steps or (options.seconds and now - began >= options.seconds):
            _say(step, loss.item(), scaler.get_scale(), None)
            break
        if not options.fast:
            time.sleep(max(0.0, began + step / STEPS_PER_SECOND - now))


def _say(step: int, loss: float, scale: float, rate: float | None) -> None:
    speed = f"  {rate:.1f} steps/s" if rate is not None else ""
    print(f"step {step:>5}  loss {loss:<10.4g}  loss scale {scale:<10.4g}{speed}", flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="topsmon demo amp", allow_abbrev=False)
    parser.add_argument("--break", dest="broken", choices=BREAKS)
    parser.add_argument("--break-step", type=int, default=BREAK_STEP)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--fast", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Train as the arguments say; errors of the device are one line."""
    options = parse(arguments)
    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        print(f"topsmon demo: --device {options.device}: {first}", file=sys.stderr)
        return 64
    try:
        train(options)
    except KeyboardInterrupt:
        print("stopped", flush=True)  # Ctrl-C is how it is meant to end
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
