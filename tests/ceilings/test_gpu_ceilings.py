"""Ceilings of GPUs against published figures and hand counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.ceilings import boards, find_board_by_name, for_device, fp32_lanes_per_sm, held
from topsmon.ceilings.database import rates
from topsmon.ceilings.gpu import for_board

Gpu = Callable[..., events.Device]


def peak(name: str, precision: str) -> float | None:
    """Dense rated ceiling in TFLOPS or TOPS of a board by name."""
    board = find_board_by_name(name)
    assert board is not None, name
    return tera(for_board(board), precision)


def tera(ceilings: events.Ceilings, precision: str) -> float | None:
    ceiling = of(ceilings, precision)
    return ceiling.ops_per_second / 1e12 if ceiling is not None else None


def of(ceilings: events.Ceilings, precision: str) -> events.Ceiling | None:
    return next((rate for rate in ceilings.rates if rate.precision == precision), None)


def of_board(key: str, precision: str) -> events.Ceiling:
    ceiling = of(for_board(boards()[key]), precision)
    assert ceiling is not None
    return ceiling


@pytest.mark.parametrize(
    ("name", "right"),
    [
        # Dense BF16, or FP16 with FP32 accumulation: the data sheets' figures.
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla T4", 65),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA A40", 149.7),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA GeForce RTX 3090", 71.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA L4", 121),
        ("NVIDIA L20", 119.5),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H800", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA GeForce RTX 3070 Ti", 43.5),
        ("NVIDIA A10", 125),
    ],
)
def test_the_ceiling_of_torch_mm_in_half_precision(name: str, right: float) -> None:
    assert peak(name, "fp16_acc32") == pytest.approx(right, rel=0.005)


def test_rtx_3090() -> None:
    name = "NVIDIA GeForce RTX 3090"
    expected = {"fp32": 35.6, "tf32": 35.6, "fp16_acc32": 71.2, "fp16_acc16": 142.3, "int8": 284.7}
    for precision, value in expected.items():
        assert round(peak(name, precision) or 0, 1) == value
    sparse = of_board("rtx-3090", "int8").sparse_ops_per_second
    assert sparse == pytest.approx(569.3e12, rel=1e-3)
    assert for_board(boards()["rtx-3090"]).memory_bandwidth_bytes_per_second == 936e9


def test_v100_sxm2() -> None:
    ceilings = for_board(boards()["v100-sxm2-16gb"])
    assert round(tera(ceilings, "fp32") or 0, 1) == 15.7
    assert round(tera(ceilings, "fp16_acc32") or 0) == 125
    assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(899e9, rel=0.002)
    assert ceilings.absent["bf16"] == "emulated: no native BF16 on sm_70"
    assert ceilings.absent["int8"] == "no INT8 Tensor Core type on sm_70"
    assert round(tera(ceilings, "int8_dp4a") or 0, 1) == 62.7


def test_sparse_is_never_the_dense_ceiling_of_hopper(gpu: Gpu) -> None:
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H800"):
        ceiling = of(for_device(gpu(name)), "bf16")
        assert ceiling is not None
        assert ceiling.ops_per_second == pytest.approx(989.4e12, rel=1e-3)
        assert ceiling.sparse_ops_per_second == pytest.approx(1979e12, rel=1e-3)
        assert 420e12 / ceiling.ops_per_second == pytest.approx(0.4245, abs=5e-4)


@pytest.mark.parametrize(("mhz", "right"), [(1830, 989.4), (1980, 1070.5), (1410, 762.3)])
def test_h100_at_a_held_clock(mhz: float, right: float) -> None:
    assert held(of_board("h100-sxm", "bf16"), mhz) == pytest.approx(right * 1e12, rel=1e-4)


def test_the_maximum_clock_does_not_raise_the_tensor_peak(gpu: Gpu) -> None:
    device = gpu("NVIDIA H100 80GB HBM3", sm_count=132, sm_clock_max_mhz=1980)
    assert tera(for_device(device), "bf16") == pytest.approx(989.4, rel=1e-3)
    assert tera(for_device(device), "fp64_tensor") == pytest.approx(67, rel=0.005)


def test_a10_base_clock_is_not_the_ceiling() -> None:
    assert peak("NVIDIA A10", "fp32") == pytest.approx(31.24, rel=1e-3)
    assert peak("NVIDIA A10", "bf16") == pytest.approx(125.0, rel=1e-3)
    ceiling = of_board("a10", "bf16")
    assert held(ceiling, 885) == pytest.approx(65.2e12, rel=1e-3)
    fp32 = 2 * 3456 * 4096 * 4096 / 9.30172e-3
    assert fp32 / of_board("a10", "fp32").ops_per_second == pytest.approx(0.399, abs=1e-3)


def test_3070_ti_bf16_is_not_its_fp32() -> None:
    assert peak("NVIDIA GeForce RTX 3070 Ti", "bf16") == pytest.approx(43.5, rel=1e-3)
    assert peak("NVIDIA GeForce RTX 3070 Ti", "fp32") == pytest.approx(21.75, rel=1e-3)


def test_rtx_5090_fp8_by_accumulation() -> None:
    acc32, acc16 = of_board("rtx-5090", "fp8_acc32"), of_board("rtx-5090", "fp8_acc16")
    achieved = 2 * 4096**3 / 210e-6
    assert achieved / acc32.ops_per_second == pytest.approx(1.562, abs=0.002)
    assert achieved / acc16.ops_per_second == pytest.approx(0.781, abs=0.002)
    assert "block-scaled" in acc32.note


def test_geforce_half_rates() -> None:
    for key, board in boards().items():
        if board.class_ != "geforce" or board.cc < "7.5" or board.boost_mhz is None:
            continue
        acc32, acc16 = of_board(key, "fp16_acc32"), of_board(key, "fp16_acc16")
        assert acc32.ops_per_second == pytest.approx(acc16.ops_per_second / 2, rel=0.01), key
        assert acc32.ops_per_second > of_board(key, "fp16_vec").ops_per_second, key
        assert "half rate" in acc32.note, key


def test_tf32_over_fp32() -> None:
    expected = {"rtx-3090": 1, "l40": 1, "a10g": 1, "l20": 1, "a10": 2, "rtx-a6000": 2, "l40s": 2}
    for key, times in {**expected, "a100-sxm4-40gb": 8, "h100-sxm": 7.4}.items():
        ratio = of_board(key, "tf32").ops_per_second / of_board(key, "fp32").ops_per_second
        assert ratio == pytest.approx(times, rel=0.02), key


def test_dgemm_has_the_tensor_row() -> None:
    assert of_board("a100-sxm4-40gb", "fp64_tensor").ops_per_second == pytest.approx(19.5e12, 0.002)
    assert of_board("h100-sxm", "fp64_tensor").ops_per_second == pytest.approx(67e12, rel=0.002)


@pytest.mark.parametrize(
    ("key", "precision", "reason"),
    [
        ("a100-sxm4-40gb", "fp8_acc32", "no FP8 on sm_80"),
        ("a100-sxm4-40gb", "fp4", "no FP4 on sm_80"),
        ("h100-sxm", "int4", "no INT4 Tensor Core type on sm_90"),
        ("t4", "bf16", "emulated: no native BF16 on sm_75"),
        ("t4", "tf32", "no TF32 on sm_75"),
        ("rtx-3090", "fp64_tensor", "no FP64 Tensor Cores on sm_86"),
        ("p40", "fp16_acc16", "no Tensor Cores on sm_61"),
        ("h800-sxm", "fp64_tensor", "capped on this board, the rate is not known"),
        ("h20", "fp16_acc16", "export-capped rates: the formula does not apply"),
    ],
)
def test_what_the_hardware_lacks_has_a_reason_and_no_figure(
    key: str, precision: str, reason: str
) -> None:
    ceilings = for_board(boards()[key])
    assert ceilings.absent[precision] == reason
    assert of(ceilings, precision) is None


def test_b300_int8_is_unknown_rather_than_that_of_b200() -> None:
    ceilings = for_board(boards()["b300"])
    assert "sources disagree" in ceilings.absent["int8"]
    fp4 = of(ceilings, "fp4")
    assert fp4 is not None
    assert fp4.sparse_ops_per_second == pytest.approx(fp4.ops_per_second * 4 / 3)


def test_pascal_half_precision_runs_on_the_fp32_units() -> None:
    ceilings = for_board(boards()["p40"])
    fp16, fp32 = of(ceilings, "fp16_acc32"), of(ceilings, "fp32")
    assert fp16 is not None
    assert fp32 is not None
    assert fp16.ops_per_clock == fp32.ops_per_clock
    assert fp16.verified is False
    assert "no Tensor Cores" in fp16.note


@pytest.mark.parametrize(
    ("name", "pci_device_id"),
    [
        ("NVIDIA GeForce GTX 1660 Ti", None),
        ("NVIDIA GeForce GTX 1650 with Max-Q Design", None),
        ("NVIDIA GeForce MX450", None),
        ("NVIDIA T1000 8GB", None),
        ("NVIDIA T600 Laptop GPU", None),
        ("NVIDIA Graphics Device", "0x1F8210DE"),
    ],
)
def test_turing_without_tensor_cores(gpu: Gpu, name: str, pci_device_id: str | None) -> None:
    device = gpu(
        name,
        compute_capability="7.5",
        sm_count=24,
        sm_clock_max_mhz=2100,
        pci_device_id=pci_device_id,
    )
    ceilings = for_device(device)
    assert ceilings.absent["fp16_acc32"] == "no Tensor Cores on this chip"
    assert ceilings.absent["int8"] == "no Tensor Cores on this chip"
    assert tera(ceilings, "fp32") == pytest.approx(24 * 128 * 2100 / 1e6)
    assert tera(ceilings, "fp16_vec") == pytest.approx(24 * 256 * 2100 / 1e6)


def test_turing_with_tensor_cores_keeps_them(gpu: Gpu) -> None:
    device = gpu("Quadro RTX 4000", compute_capability="7.5", sm_count=36, sm_clock_max_mhz=2100)
    assert tera(for_device(device), "fp16_acc32") == pytest.approx(36 * 1024 * 2100 / 1e6)


def test_an_unknown_board_of_an_unknown_architecture_has_no_ceiling(gpu: Gpu) -> None:
    device = gpu("NVIDIA FutureCard X1", compute_capability="99.0", sm_count=300)
    ceilings = for_device(device)
    assert ceilings.rates == ()
    assert ceilings.board is None
    assert ceilings.matched_by is None
    assert "no ceiling known for NVIDIA FutureCard X1" in str(ceilings.unknown)
    assert "compute capability 99.0" in str(ceilings.unknown)


@pytest.mark.parametrize("name", ["NVIDIA FutureCard X1", "AMD Instinct MI250X", "MI355X"])
def test_a_board_of_another_vendor_has_no_ceiling(gpu: Gpu, name: str) -> None:
    ceilings = for_device(gpu(name))
    assert ceilings.rates == ()
    assert "No other board's figure is used" in str(ceilings.unknown)


def test_an_unknown_board_of_a_known_architecture_is_computed(gpu: Gpu) -> None:
    device = gpu("NVIDIA FutureCard X1", compute_capability="9.0", sm_count=100)
    ceilings = for_device(gpu_with_clock(device, 2000))
    assert ceilings.board is None
    assert ceilings.matched_by == "computed from architecture"
    assert tera(ceilings, "bf16") == pytest.approx(100 * 4096 * 2000 / 1e6)
    assert {ceiling.origin for ceiling in ceilings.rates} == {"computed"}
    assert any("not the rated boost" in note for note in ceilings.notes)
    assert any("below the vector clock" in note for note in ceilings.notes)
    assert "rated boost 1900 MHz" in for_device(device, rated_clock_mhz=1900).clock_source
    assert "clock is not known" in str(for_device(device).unknown)


def gpu_with_clock(device: events.Device, mhz: int) -> events.Device:
    fields = {name: getattr(device, name) for name in device.__struct_fields__}
    return events.Device(**{**fields, "sm_clock_max_mhz": mhz})


def test_an_unknown_geforce_is_halved_and_others_are_not(gpu: Gpu) -> None:
    fields = {"compute_capability": "8.9", "sm_count": 20, "sm_clock_max_mhz": 2000}
    geforce = for_device(gpu("NVIDIA GeForce RTX 4050 Laptop GPU", **fields))
    workstation = for_device(gpu("NVIDIA RTX 2000 Ada Generation", **fields))
    nameless = for_device(gpu("NVIDIA Graphics Device", **fields))
    full = 20 * 1024 * 2000 / 1e6
    assert tera(geforce, "bf16") == pytest.approx(full / 2)
    assert tera(workstation, "bf16") == pytest.approx(full)
    assert "not a GeForce board" in str(of(workstation, "bf16"))
    bf16 = of(nameless, "bf16")
    assert bf16 is not None
    assert bf16.origin == "range"
    assert bf16.ops_per_second_low == pytest.approx(full / 2 * 1e12)
    assert bf16.ops_per_second == pytest.approx(full * 1e12)
    assert tera(nameless, "fp32") == pytest.approx(20 * 256 * 2000 / 1e6)


def test_capped_export_parts_outside_the_table_get_no_fp64(gpu: Gpu) -> None:
    device = gpu("NVIDIA H800 PCIe", compute_capability="9.0", sm_count=114, sm_clock_max_mhz=1755)
    ceilings = for_device(device)
    assert of(ceilings, "fp64") is None
    assert "capped" in ceilings.absent["fp64_tensor"]
    assert of(ceilings, "bf16") is not None


def test_a_mig_slice_has_its_share_of_the_sms(gpu: Gpu) -> None:
    name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    device = gpu(name, compute_capability="8.0", mig=True, sm_count=108)
    ceilings = for_device(device, sm_count=14)
    assert ceilings.board == "a100-sxm4-40gb"
    assert tera(ceilings, "bf16") == pytest.approx(312 * 14 / 108, rel=1e-3)
    bf16 = of(ceilings, "bf16")
    assert bf16 is not None
    assert bf16.origin == "computed"
    assert bf16.ops_per_clock == 14 * 2048
    assert ceilings.memory_bandwidth_bytes_per_second is None
    assert "MIG slice" in ceilings.memory_bandwidth_source
    assert any("14 of 108 SMs (MIG slice)" in note for note in ceilings.notes)


def test_the_driver_counts_the_sms_not_the_table(gpu: Gpu) -> None:
    device = gpu(
        "NVIDIA A10G",
        pci_device_id="0x223710DE",
        pci_subsystem_id="0x152F10DE",
        compute_capability="8.6",
        sm_count=72,
    )
    ceilings = for_device(device)
    assert ceilings.board == "a10g"
    assert tera(ceilings, "bf16") == pytest.approx(70.04 * 72 / 80, rel=1e-3)
    assert any("72 of 80 SMs" in note for note in ceilings.notes)


def test_uncertain_boards_are_ranges() -> None:
    server = of_board("rtx-pro-6000-server", "bf16")
    assert server.origin == "range"
    assert server.ops_per_second_low == pytest.approx(188 * 1024 * 2430e6)
    assert server.ops_per_second == pytest.approx(188 * 1024 * 2617e6)
    # torch.mm has measured 417 TFLOPS on it: more than the half rate, less than the low end.
    assert server.ops_per_second / 2 < 417e12 < server.ops_per_second_low
    pro_5000 = of_board("rtx-pro-5000", "bf16")
    assert pro_5000.ops_per_second_low == pytest.approx(pro_5000.ops_per_second / 2)
    assert "sources disagree" in pro_5000.note


def test_l40s_figure_that_repeats_another_is_explained() -> None:
    int4 = of_board("l40s", "int4")
    assert int4.published_ops_per_second == 733e12
    assert "repeats the INT8 figure" in int4.note


def test_what_was_not_read_is_marked() -> None:
    assert of_board("p40", "fp32").verified is False
    assert of_board("h100-sxm", "bf16").verified is True
    assert of_board("titan-rtx", "int8").verified is True
    assert of_board("titan-rtx", "fp32").verified is False
    assert of_board("rtx-3090", "fp64").verified is None


def test_a_rate_that_does_not_follow_the_formula_is_not_moved_by_the_clock() -> None:
    assert held(of_board("h20", "bf16"), 1000) is None


def test_h100_form_factors_differ() -> None:
    for form, value in {"80GB HBM3": 989.4, "PCIe": 756.5, "NVL": 835.5}.items():
        assert peak(f"NVIDIA H100 {form}", "bf16") == pytest.approx(value, rel=5e-4)


def test_lanes_per_sm_give_the_sm_count() -> None:
    cores = {"8.6": (10496, 82), "8.0": (6912, 108), "7.0": (5120, 80), "9.0": (16896, 132)}
    for cc, (count, sms) in cores.items():
        lanes = fp32_lanes_per_sm(cc)
        assert lanes is not None
        assert count / lanes == sms
    assert fp32_lanes_per_sm("99.0") is None


@given(
    cc=st.sampled_from(sorted(rates().architecture)),
    sms=st.integers(1, 256),
    mhz=st.integers(200, 3500),
    more=st.integers(1, 100),
)
def test_computed_ceilings_grow_with_sms_and_clock(cc: str, sms: int, mhz: int, more: int) -> None:
    def rates_of(count: int, clock: int) -> dict[str, float]:
        device = events.Device(
            time=0,
            monotonic=0,
            source="h",
            device="d",
            kind="gpu",
            index=0,
            name="NVIDIA Unlisted",
            compute_capability=cc,
            sm_count=count,
            sm_clock_max_mhz=clock,
        )
        return {rate.precision: rate.ops_per_second for rate in for_device(device).rates}

    base, larger, faster = rates_of(sms, mhz), rates_of(sms + more, mhz), rates_of(sms, mhz + more)
    assert base.keys() == larger.keys() == faster.keys()
    for precision, value in base.items():
        assert larger[precision] == pytest.approx(value * (sms + more) / sms)
        assert faster[precision] == pytest.approx(value * (mhz + more) / mhz)
