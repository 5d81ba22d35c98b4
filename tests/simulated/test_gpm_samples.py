"""GPM as the real nvidia-ml-py reads it: two samples, a code for each metric, a mean between."""

import pytest

ALL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 60, 61)
READ = """
import pathlib
n.nvmlInit()
def clock(t): pathlib.Path(folder, 'clock').write_text(str(t))
def code(f, *a):
    try: f(*a); return 0
    except n.NVMLError as e: return e.value
def metrics(older, newer, ids):
    m = n.c_nvmlGpmMetricsGet_t()
    m.version, m.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(ids)
    m.sample1, m.sample2 = older, newer
    for i, metric in enumerate(ids): m.metrics[i].metricId = metric
    n.nvmlGpmMetricsGet(m)
    return [[m.metrics[i].nvmlReturn, m.metrics[i].value] for i in range(len(ids))]
h = n.nvmlDeviceGetHandleByIndex(0)
"""
ONE = {"title": "t", "description": "d", "expected": "ok"}


def read(simulation, code: str):
    return simulation.result(f"folder = {str(simulation.folder)!r}\n{READ}{code}")


def test_every_metric_has_its_own_value(simulate) -> None:
    simulation = simulate("every-signal")
    found = read(
        simulation,
        "s = [n.nvmlGpmSampleGet(h, n.nvmlGpmSampleAlloc()) for _ in range(2)]\n"
        f"r = metrics(*s, {ALL!r}); [n.nvmlGpmSampleFree(x) for x in s]",
    )
    # SM, occupancy, ... as the scenario file has them, in the order of NVML's ids
    values = [82, 71, 29, 14, 46, 1, 41, 3, 2, 36, 5, 11, 7, 205, 333, 28200, 26400]
    assert found == [[0, value] for value in values]


def test_a_value_is_the_mean_between_its_samples(simulate) -> None:
    """10 % until 4 s and 50 % from then on: from 2 s to 6 s (2 * 10 + 2 * 50) / 4 = 30 %."""
    device = {"gpm_supported": 1, "gpm_sm_percent": {"steps": [[0, 10], [4, 50]]},
              "gpm_dram_percent": {"ramp": [0, 100, 0, 10]}}  # fmt: skip
    found = read(
        simulate({**ONE, "device": device}),
        "a, b, c = (n.nvmlGpmSampleAlloc() for _ in range(3))\n"
        "clock(2); n.nvmlGpmSampleGet(h, a); clock(6); n.nvmlGpmSampleGet(h, b)\n"
        "clock(8); n.nvmlGpmSampleGet(h, c)\n"
        "r = [metrics(a, b, [2, 10]), metrics(b, c, [2, 10]), code(metrics, b, a, [2])]",
    )
    assert found == [[[0, 30], [0, pytest.approx(40)]], [[0, 50], [0, pytest.approx(70)]], 2]


def test_metrics_fail_one_by_one(simulate) -> None:
    content = {
        **ONE,
        "device": {"gpm_supported": 1, "gpm_sm_percent": 12, "gpm_dram_percent": 34},
        "faults": [{"call": "gpm:10", "return": "NoPermission"}],
    }
    found = read(
        simulate(content),
        "s = [n.nvmlGpmSampleGet(h, n.nvmlGpmSampleAlloc()) for _ in range(2)]\n"
        "r = [x[0] for x in metrics(*s, [2, 5, 10, 476, 477])]",
    )
    assert found == [0, 3, 4, 3, 2]


def test_permission_may_go_after_some_samples(simulate) -> None:
    found = read(
        simulate("gpm-denied"),
        "s = n.nvmlGpmSampleAlloc(); r = [code(n.nvmlGpmSampleGet, h, s) for _ in range(14)]",
    )
    assert found == [0] * 10 + [4] * 4


@pytest.mark.parametrize(("name", "support"), [("a100", 0), ("rtx4090", 0), ("h100-8", 1)])
def test_support_is_told_and_shown_by_a_sample(simulate, name: str, support: int) -> None:
    found = read(
        simulate(name),
        "s = n.nvmlGpmSampleAlloc()\n"
        "r = [n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice, code(n.nvmlGpmSampleGet, h, s)]",
    )
    assert found == [support, 0 if support else 3]


def test_driver_470_has_no_gpm(simulate) -> None:
    found = read(
        simulate("driver-470"),
        "r = [code(n.nvmlGpmQueryDeviceSupport, h), code(n.nvmlGpmSampleAlloc)]",
    )
    assert found == [13, 13]


def test_a_mig_instance_has_counters_of_its_own(simulate) -> None:
    found = read(
        simulate("mig"),
        "r = []\n"
        "for gi in (1, 2, 9):\n"
        "    s = [n.nvmlGpmMigSampleGet(h, gi, n.nvmlGpmSampleAlloc()) for _ in range(2)]\n"
        "    r.append([x[1] for x in metrics(*s, [2, 10])])\n"
        "r.append(code(n.nvmlGpmMigSampleGet, h, 3, n.nvmlGpmSampleAlloc()))",
    )
    assert found == [[88, 49], [28, 63], [0, 0], 6]


def test_samples_of_two_devices_make_no_metric(simulate) -> None:
    found = read(
        simulate("h100-8"),
        "s = [n.nvmlGpmSampleGet(n.nvmlDeviceGetHandleByIndex(i), n.nvmlGpmSampleAlloc())"
        " for i in range(2)]\n"
        "r = [code(metrics, *s, [2]), code(metrics, n.nvmlGpmSampleAlloc(), s[0], [2])]",
    )
    assert found == [2, 2]
