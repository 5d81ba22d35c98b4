"""What a run saw of a device beside what the state holds."""

from __future__ import annotations

from dataclasses import dataclass

from topsmon import events


@dataclass(frozen=True)
class Observed:
    """What the run saw of one device beside the state.

    `loaded` are the samples taken while something was being measured, `samples` all. `refused` says
    who uses the device, so that it was not measured; `missing` why a measurement did not happen;
    `unanswered` that the driver told nothing of it any more when the run ended.
    """

    samples: tuple[events.DeviceSample, ...] = ()
    loaded: tuple[events.DeviceSample, ...] = ()
    refused: str = ""
    missing: str = ""
    unanswered: str = ""
    quick: bool = False


NOTHING = Observed()
