"""A rate that fits AVX2 kernels on an AVX-512 CPU is named, and only then."""

import pytest
from machines import NOW, cpu, machine

from topsmon import events
from topsmon.diagnosis import diagnose

HEADER = {"time": 1.0, "monotonic": 1.0, "source": "host"}


def ceilings(cores: int, instructions: str, per_clock: int) -> events.Ceilings:
    rates = [
        events.Ceiling(
            precision=precision,
            ops_per_second=cores * per_clock * scale * 3600e6,
            ops_per_clock=cores * per_clock * scale,
            rated_clock_mhz=3600,
            origin="computed",
            source="s",
            note=f"{cores} cores x {per_clock * scale} per clock ({instructions})",
        )
        for precision, scale in (("fp32", 1), ("bf16", 2))
    ]
    return events.Ceilings(**HEADER, device="cpu", rates=tuple(rates))


def rate(value: float, precision: str = "fp32", **changes: object) -> events.RateMeasured:
    fields: dict[str, object] = {
        "device": "cpu",
        "precision": precision,
        "rate_ops_per_second": value,
        "shape": (3840, 3840, 3840),
        "correct": True,
        "held_clock_mhz": 4000.0,
        **changes,
    }
    return events.RateMeasured(**HEADER, **fields)


def found(*more: events.AnyEvent) -> list[events.Finding]:
    state = machine(cpu(), *more)
    return [one for one in diagnose(state, NOW) if one.code == "library-without-avx512"]


def test_openblas_on_an_i9_9980xe() -> None:
    # 3840^3 in 49.279 ms: 113,246.208 MFLOP -> 2298.1 GFLOPS. AVX2: 18 x 4.0 GHz x 32 = 2304
    # (99.7 %); AVX-512 at that clock twice as much.
    measured = 2 * 3840**3 / 49.279e-3
    assert measured == pytest.approx(2298.1e9, rel=1e-4)
    (finding,) = found(ceilings(18, "AVX-512", 64), rate(measured))
    assert finding.title.endswith("the rate fits AVX2 kernels")
    assert finding.cause.startswith("most likely")
    assert finding.severity == "info"
    assert any("100% of the AVX2 ceiling" in line for line in finding.evidence)


def test_a_fast_bf16_is_evidence_and_advice() -> None:
    measured = rate(2298e9), rate(8000e9, "bf16")
    (finding,) = found(ceilings(18, "AVX-512", 64), *measured)
    assert any(line.startswith("BF16 reaches") for line in finding.evidence)
    assert "BF16" in finding.remedy


@pytest.mark.parametrize(
    ("instructions", "value", "changes"),
    [
        ("AVX-512", 4000e9, {}),  # 87 %: AVX-512 kernels
        ("AVX-512", 1200e9, {}),  # 26 %: slower than AVX2 would be, another cause
        ("AVX2", 1000e9, {}),
        ("AVX-512", 2298e9, {"valid": False, "invalid_reason": "60 % of CPU time"}),
        ("AVX-512", 2298e9, {"held_clock_mhz": None}),
    ],
    ids=["wide", "slow", "no-avx512", "disturbed", "clock-unknown"],
)
def test_no_false_alarm(instructions: str, value: float, changes: dict[str, object]) -> None:
    per_clock = 64 if instructions == "AVX-512" else 32
    assert not found(ceilings(18, instructions, per_clock), rate(value, **changes))
