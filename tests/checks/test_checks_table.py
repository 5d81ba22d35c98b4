"""The table of checks: a limit is derived from a ceiling or a published figure, or only warns."""

import pytest

from topsmon import units
from topsmon.checks import UnknownCheckError, model, select
from topsmon.checks.verdict import JUDGES
from topsmon.diagnosis.expected import table as expected_table

CHECKS = model.table().check
BY_ID = {check.id: check for check in CHECKS}
OF_A_CEILING = {"memory ceiling", "the best equal GPU"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_limit_is_a_fraction_of_something_or_can_only_warn(check: model.Check) -> None:
    limits = [check.pass_from, check.warn_from, check.fail_from]
    given = [limit for limit in limits if limit is not None]
    if check.judge == "rate":
        assert not given  # see expected.toml
    elif given and not check.experimental:
        assert all(0 < limit < 1 for limit in given)
        assert check.of in OF_A_CEILING
        assert check.basis
    elif given:
        assert "chosen" in check.basis


def test_copies_over_the_link_are_judged_by_published_figures() -> None:
    # Azure/azurehpc-health-checks conf: V100 9-10, A100 21, H100 and H200 48 GB/s on 16 lanes.
    figures = {one.generation: (one.pass_from, one.warn_from) for one in model.table().pcie}
    assert figures == {3: (10.0, 9.0), 4: (23.0, 21.0), 5: (50.4, 48.0)}
    assert all("azurehpc" in one.published for one in model.table().pcie)


def test_every_rate_limit_is_a_fraction_too() -> None:
    table = expected_table()
    assert 0 < table.published.far_off < table.published.enough < 1
    for default in table.default:
        assert 0 < default.far_off < default.enough < 1
        assert default.basis


def test_pass_is_stricter_than_warn() -> None:
    for check in CHECKS:
        if check.pass_from is not None and check.warn_from is not None:
            better = check.pass_from < check.warn_from
            assert better == check.lower_is_better, check.id


def test_every_check_has_a_judge_and_measures_what_there_is() -> None:
    probes = {"memory", "transfer", "launch", "alignment", "overlap", "sync_stall"}
    for check in CHECKS:
        assert check.judge in JUDGES, check.id
        for key in (check.needs, check.beside, check.load):
            assert key in {"", "nvml", "rates", *units.PRECISIONS, *probes}, check.id
    assert {check.judge for check in CHECKS} == set(JUDGES)
    assert len(BY_ID) == len(CHECKS)


def test_all_precisions_are_checked() -> None:
    rates = {check.needs for check in CHECKS if check.judge == "rate"}
    assert rates | {"fp16_acc16"} == set(units.PRECISIONS)


def test_a_run_fits_into_half_a_minute_with_the_start_of_torch() -> None:
    # Importing torch takes 3 s and more; the rest is for making operands and checking results.
    assert sum(model.plan(select(), "gpu").values()) <= 20
    assert sum(model.plan(select(), "cpu").values()) <= 20


def test_quick_needs_the_driver_alone() -> None:
    checks = select(quick=True)
    assert model.plan([check for check in checks if not check.load], "gpu") == {}
    assert {check.needs for check in checks} == {"nvml"}


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["bf16"], ["bf16"]),
        (["memory"], ["memory"]),
        (["link"], ["transfer"]),
        (["throttling"], ["fp16"]),
        (["fp16-accumulate"], ["fp16", "fp16_acc16"]),
        (["driver", "ecc"], []),
        (["peers"], ["bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp64", "fp4"]),
    ],
)
def test_only_what_is_needed_is_measured(only: list[str], expected: list[str]) -> None:
    assert list(model.plan(select(only), "gpu")) == expected


def test_names_and_groups_select_and_skip() -> None:
    assert [check.id for check in select(["h2d", "bf16"])] == ["bf16", "h2d"]
    assert [check.id for check in select(["memory"])] == ["dram-copy", "dram-triad"]
    kept = {check.id for check in select(skip=["rates", "transfer"])}
    assert not kept & {"bf16", "fp64", "correctness", "peers", "h2d", "d2h"}
    assert {"driver", "dram-copy"} <= kept


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownCheckError, match=r"--skip: no check is called 'bf17'.*bf16.*peers"):
        select(skip=["bf17"])
