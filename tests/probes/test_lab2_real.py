"""The workload, layout and quantisation probes on the CPU at hand, as its prober would run them."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from probe_children import decode  # noqa: E402

from topsmon.probes import devices, lab, wire  # noqa: E402
from topsmon.probes.errors import UnsupportedError  # noqa: E402
from topsmon.probes.lab.context import Context  # noqa: E402
from topsmon.probes.plan import conclude  # noqa: E402

pytestmark = pytest.mark.real

VALUES = {
    "layout": {
        "contiguous_seconds",
        "channels_last_seconds",
        "channels_last_speedup_ratio",
        "row_major_seconds",
        "column_major_seconds",
        "column_major_speedup_ratio",
    },
    "convolution": {"rate_ops_per_second", "intensity_flops_per_byte", "seconds", "flops"},
    "attention_prefill": {
        "rate_ops_per_second",
        "bytes_per_second",
        "intensity_flops_per_byte",
        "seconds",
    },
    "attention_decode": {
        "rate_ops_per_second",
        "bytes_per_second",
        "intensity_flops_per_byte",
        "seconds",
    },
    "message_passing": {"bytes_per_second", "intensity_flops_per_byte", "rate_ops_per_second"},
    "quantisation": {
        f"{kind}_{key}_ratio"
        for kind in ("speedup", "error")
        for key in ("fp16", "bf16", "int8", "fp8")
    },
}


@pytest.fixture(scope="module")
def cpu():
    before = torch.get_num_threads()
    yield devices.open_device("cpu")
    torch.set_num_threads(before)


def event_of(name, device):
    """Run a probe at a tenth of its length; returns what the parent would get."""
    probe = lab.load(name)
    assert name == probe.NAME
    assert not probe.OPT_IN
    bench = Context(device, time_scale=0.1)
    fields = conclude(name, probe.run(bench), bench.conditions(), 1.0)
    lines = []
    wire.Writer("cpu", lines.append).emit("probe", **fields)
    return decode(lines[0])


@pytest.mark.parametrize("name", VALUES)
def test_a_probe_on_this_cpu(name, cpu):
    event = event_of(name, cpu)
    assert event.probe == name
    assert event.correct is True, (event.relative_error, event.error_limit)
    # FP8 is asked of a library that may lack it on this CPU; then there is a reason instead.
    assert VALUES[name] <= set(event.values) | set(event.unavailable)
    assert not set(event.values) & set(event.unavailable)
    for key, value in event.values.items():
        assert value is not None, key
        assert value > 0, key
        assert math.isfinite(value), key
    assert event.torch_version == str(torch.__version__)
    assert event.threads is not None
    assert event.method
    if event.values.get("flops"):
        rate = event.values["rate_ops_per_second"]
        assert rate == pytest.approx(event.values["flops"] / event.values["seconds"])


def test_a_workload_s_place_is_under_the_right_roof(cpu):
    event = event_of("attention_decode", cpu)
    assert event.labels["precision"] == "fp32"
    assert 0.4 < event.values["intensity_flops_per_byte"] < 0.5


def test_sparsity_says_why_not(cpu):
    with pytest.raises(UnsupportedError, match="a CPU has none"):
        lab.load("sparsity").run(Context(cpu))


def test_compiling_is_never_done_unasked():
    assert lab.load("fusion").OPT_IN is True
