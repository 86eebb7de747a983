"""Effects from linear sums: elementary functions, recovery of known effects, noise that is told from signal."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.features.schema import declare
from hushstream.systems.p2b.server import estimate as module
from hushstream.systems.p2b.server.estimate import (
    AggregationError,
    cold_start,
    effects,
    exp,
    log,
    logistic,
    logit,
    total,
    warm_start,
)
from hushstream.systems.p2b.shuffler import linear_sums
from hushstream.systems.p2b.slots import layout_of, pack_reports, unpack_reports

SCHEMA = declare(
    {
        "colour": {"kind": "category", "vocabulary": ["red", "green", "blue"]},
        "shape": {"kind": "category", "vocabulary": ["round", "square"]},
        "text": {"kind": "embedding", "dimension": 6},
    }
)
ARMS = 3
RECORDED_LOG = [
    "-0x1.26bb1bbb55515p+1",
    "-0x1.62e42fefa39efp-1",
    "-0x1.af8e8210a415cp-4",
    "0x1.62e42fefa39efp-1",
    "-0x1.4b927f32bffb8p+4",
]
RECORDED_EXP = [
    "0x1.cf46d99d52b3ap-1",
    "0x1.368b2fc6f960ap-1",
    "0x1.a053cc0086e1ep-2",
    "0x1.152aaa3bf81ccp-3",
    "0x1.fffffff768fa1p-1",
]
LAYOUT = layout_of(SCHEMA, ARMS, 1, epsilon=1.0, slots=100_000)


@given(st.floats(1e-300, 1e300))
@settings(max_examples=200, deadline=None)
def test_log_is_within_two_units_in_the_last_place(value):
    found = float(log(np.array([value]))[0])
    assert abs(mpmath.mpf(found) - mpmath.log(value)) <= 2 * math.ulp(max(abs(found), 1e-300)) + 2**-60


@given(st.floats(-690, 690))
@settings(max_examples=200, deadline=None)
def test_exp_is_within_two_units_in_the_last_place(value):
    found = float(exp(np.array([value]))[0])
    assert abs(mpmath.mpf(found) - mpmath.exp(value)) <= 2 * math.ulp(found)


def test_elementary_functions_keep_their_bits():
    """Recorded: other bits on another machine would be another model there."""
    values = np.array([0.1, 0.5, 0.9, 2.0, 1e-9])
    assert [bits.hex() for bits in log(values).tolist()] == RECORDED_LOG
    assert [bits.hex() for bits in exp(-values).tolist()] == RECORDED_EXP


def test_logit_and_logistic_undo_one_another_and_sums_have_no_order():
    shares = np.array([0.002, 0.1, 0.5, 0.998])
    assert logistic(logit(shares)) == pytest.approx(shares, rel=1e-13)
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(1000).clip(max=12)
    assert total(values) == total(values[::-1].copy()) == total(np.sort(values))


def _sums(slots: int, tilt: np.ndarray, seed: int, text: np.ndarray | None = None):
    """Sums of slots whose click has log-odds -1.5 + an arm's effect for a colour (and for a text's coordinates)."""
    rng = np.random.default_rng(seed)
    colours, arms = rng.integers(0, 3, slots), rng.integers(0, ARMS, slots)
    vectors = rng.normal(size=(slots, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    odds = -1.5 + tilt[arms, colours]
    if text is not None:
        odds = odds + (vectors * text[arms]).sum(axis=1)
    clicks = (rng.random(slots) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    names = np.array(["red", "green", "blue"], dtype=object)
    columns = {"colour": names[colours], "shape": ["round"] * slots, "text": list(vectors)}
    units = LAYOUT.units_of(SCHEMA.blocks(SCHEMA.encode_columns(columns).rows))
    reports = unpack_reports(LAYOUT, pack_reports(LAYOUT, arms, clicks, 0, units))
    return linear_sums(LAYOUT, reports, np.ones(slots, dtype=np.bool_))


def _block(found, name: str) -> np.ndarray:
    block = next(one for one in LAYOUT.blocks if one.name == name)
    return found.cells[:, block.first_cell - 1 : block.first_cell - 1 + block.cells]


TILT = np.array([[0.6, 0.0, -0.6], [-0.6, 0.6, 0.0], [0.0, -0.6, 0.6]])


def test_known_effects_are_found_and_a_block_without_any_stays_at_nought():
    """Standard errors are .027 (colour): .15 is five and a half of them beside Newton's one step."""
    sums = _sums(60_000, TILT, 1)
    found = effects(LAYOUT, sums.ones, sums.zeros, 0.0)
    assert _block(found, "colour")[:, :3] == pytest.approx(TILT, abs=0.15)
    assert np.abs(_block(found, "shape")).max() < 0.03
    assert np.abs(_block(found, "text")).max() < 0.1
    assert found.slots == pytest.approx(60_000)


def test_effects_of_an_embedding_are_found():
    text = np.zeros((ARMS, 6))
    text[0, 0], text[1, 1], text[2, 2] = 1.0, 1.0, -1.0
    sums = _sums(60_000, np.zeros((ARMS, 3)), 2, text)
    centred = text - text.mean(axis=0)
    assert _block(effects(LAYOUT, sums.ones, sums.zeros, 0.0), "text") == pytest.approx(centred, abs=0.25)


def test_coefficients_of_tags_are_those_of_what_a_learner_sees():
    """Visits with four of eight tags, log-odds linear in tags/sqrt(4): standard errors are some .02."""
    rng, slots = np.random.default_rng(11), 60_000
    names = np.array([f"t{number}" for number in range(8)], dtype=object)
    schema = declare({"likes": {"kind": "tags", "vocabulary": list(names), "most": 8}})
    layout = layout_of(schema, 2, 1, epsilon=1.0, slots=slots)
    present = np.argsort(rng.random((slots, 8)), axis=1)[:, :4]
    beta = np.array([1.0, -1.0, 0.5, -0.5, 0, 0, 0, 0])
    arms = rng.integers(0, 2, slots)
    odds = -1.5 + np.where(arms == 0, 1, -1) * beta[present].sum(axis=1) / 2.0
    clicks = (rng.random(slots) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    blocks = schema.blocks(schema.encode_columns({"likes": [list(names[row]) for row in present]}).rows)
    reports = unpack_reports(layout, pack_reports(layout, arms, clicks, 0, layout.units_of(blocks)))
    sums = linear_sums(layout, reports, np.ones(slots, dtype=np.bool_))
    found = effects(layout, sums.ones, sums.zeros, 0.0).cells[0, :8]
    # Of the other seven tags a visit has three, and their coefficients sum to -beta: 1 - 3/7 of it is seen. A third of
    # eight is taken to be usual where four are there.
    wanted = beta * (1 - 3 / 7) * np.sqrt((8 / 3) / 4)
    assert found == pytest.approx(wanted, abs=0.1)
    assert blocks.values[0] == pytest.approx([0.5] * 4 + [0.0] * 4)


@pytest.mark.parametrize(("redundancy", "times"), [(0.0, 4.0), (1.0, 1.0)])
def test_tags_that_always_come_together_count_once_where_that_is_declared(redundancy, times):
    """Visits with one of three groups of four tags, which move the log-odds by .4 together.

    Of the difference of two groups the standard error is .04, and one step of Newton's method is some .05 off.
    """
    rng, slots = np.random.default_rng(12), 60_000
    names = np.array([f"t{number:02d}" for number in range(12)], dtype=object)
    tags = {"kind": "tags", "vocabulary": list(names), "most": 12, "redundancy": redundancy}
    schema = declare({"likes": tags})
    layout = layout_of(schema, 2, 1, epsilon=1.0, slots=slots)
    group, arms = rng.integers(0, 3, slots), rng.integers(0, 2, slots)
    moved = np.array([0.4, -0.4, 0.0])
    odds = -1.5 + np.where(arms == 0, 1, -1) * moved[group]
    clicks = (rng.random(slots) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    rows = schema.encode_columns({"likes": [list(names[4 * one : 4 * one + 4]) for one in group]}).rows
    blocks = schema.blocks(rows)
    reports = unpack_reports(layout, pack_reports(layout, arms, clicks, 0, layout.units_of(blocks)))
    sums = linear_sums(layout, reports, np.ones(slots, dtype=np.bool_))
    found = effects(layout, sums.ones, sums.zeros, 0.0).cells[0, :12]
    # A learner sees half of each of four tags.
    first, second, _ = found.reshape(3, 4).sum(axis=1) / 2
    assert first - second == pytest.approx(times * 0.8, rel=0.15)


def test_pure_noise_says_next_to_nothing():
    """Ten draws of noise at eps 1 over 2,000 even slots: raw effects of a text are some .5 off, shrunk ones .02."""
    rng = np.random.default_rng(5)
    scale, mean = LAYOUT.sensitivity, []
    sums = _sums(2_000, np.zeros((ARMS, 3)), 7)
    for _ in range(10):
        noise = np.rint(rng.laplace(0, scale, (2, *sums.ones.shape))).astype(np.int64)
        found = effects(LAYOUT, sums.ones + noise[0], sums.zeros + noise[1], 2.0 * scale**2)
        mean.append(np.abs(found.cells).mean())
        assert (found.cell_variances >= 0).all()
    assert np.mean(mean) < 0.02


def test_stated_variances_are_those_of_repeated_noise():
    """Raw effects over 300 draws of noise, 2,700 values: up to a third of their variance goes into what arms share."""
    rng = np.random.default_rng(9)
    sums, scale = _sums(20_000, TILT, 3), 10.0 * LAYOUT.sensitivity
    block = next(one for one in LAYOUT.blocks if one.name == "colour")
    across, budget = slice(block.first_cell, block.first_cell + 3), float(LAYOUT.budgets[LAYOUT.blocks.index(block)])
    counts = (sums.ones + sums.zeros)[:, 0] / LAYOUT.budgets[0]
    shares = sums.ones[:, 0] / (sums.ones + sums.zeros)[:, 0]
    share = float(sums.ones[:, 0].sum() / (sums.ones + sums.zeros)[:, 0].sum())
    variance = 2.0 * scale**2 / budget**2
    drawn, stated = [], []
    for _ in range(300):
        noise = np.rint(rng.laplace(0, scale, (2, *sums.ones[:, across].shape))).astype(np.int64)
        ones, zeros = sums.ones[:, across] + noise[0], sums.zeros[:, across] + noise[1]
        raw, spread = module._cell_effects(
            module.Totals(ones / budget, zeros / budget, np.full(len(ones), variance)),
            ones,
            zeros,
            budget,
            counts,
            shares,
            share,
            1.0,
        )
        drawn.append(raw)
        stated.append(spread)
    information = counts.mean() / 3 * share * (1 - share)
    of_noise = variance * ((1 - share) ** 2 + share**2) / information**2
    assert 0.6 * of_noise < np.var(drawn, axis=0).mean() < 1.1 * of_noise
    assert np.mean(stated) == pytest.approx(of_noise + 1 / information, rel=0.15)


def test_shrinkage_lies_between_nothing_and_all():
    raw, spread = np.array([[2.0, -2.0, 1.5]]), np.full((1, 3), 0.01)
    kept, variance = module._shrunk(raw, spread, module._prior_of_a_block())
    assert (np.abs(kept) < np.abs(raw)).all()
    assert kept == pytest.approx(raw, rel=0.05)
    assert (variance > 0).all()
    lost, _ = module._shrunk(np.array([[0.1, -0.1, 0.05]]), np.full((1, 3), 1.0), module._prior_of_a_block())
    assert np.abs(lost).max() < 0.02


@pytest.mark.parametrize("dimension", [1, 2, 3, 16, 300])
def test_mean_absolute_sum_over_the_sphere(dimension):
    exact = dimension * mpmath.gamma(dimension / 2) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma((dimension + 1) / 2))
    assert module._mean_absolute_sum(dimension) == pytest.approx(float(exact), rel=1e-12)


def test_no_sums_at_all_give_a_model_that_knows_nothing():
    nothing = np.zeros((ARMS, LAYOUT.cells), dtype=np.int64)
    found = warm_start(effects(LAYOUT, nothing, nothing, 2.0 * LAYOUT.sensitivity**2), 0.8, 10)
    assert np.isfinite(found.means).all()
    assert (found.variances > 0).all()
    assert np.ptp(found.means, axis=0).max() < 1e-6


def test_sums_far_below_nought_still_give_a_model():
    rng = np.random.default_rng(1)
    scale = LAYOUT.sensitivity
    for _ in range(20):
        ones, zeros = (np.rint(rng.laplace(0, 50 * scale, (ARMS, LAYOUT.cells))).astype(np.int64) for _ in range(2))
        found = warm_start(effects(LAYOUT, ones, zeros, 2.0 * (50 * scale) ** 2), 0.8, 10)
        assert np.isfinite(found.means).all()
        assert (found.variances > 0).all()
        assert np.isfinite(found.variances).all()


def test_impossible_sums_are_refused():
    good = np.zeros((ARMS, LAYOUT.cells), dtype=np.int64)
    for ones, zeros, variance in (
        (good[:2], good, 1.0),
        (good, good.astype(np.float64), 1.0),
        (good, good, math.nan),
        (good, good, -1.0),
    ):
        with pytest.raises(AggregationError):
            effects(LAYOUT, ones, zeros, variance)
    with pytest.raises(AggregationError):
        warm_start(effects(LAYOUT, good, good, 1.0), 0.0, 10)


def test_the_click_rate_of_users_is_told_from_that_of_slots():
    """Slots prefer clicks: of users who click 9 % of ten visits, h (1 - (1 - p)^10) = .49 of slots hold a click."""
    share = 0.8 * (1 - 0.91**10)
    sums = np.zeros((ARMS, LAYOUT.cells), dtype=np.int64)
    clicked, unclicked = sums.copy(), sums.copy()
    clicked[:, 0], unclicked[:, 0] = (
        round(1e6 * share) * LAYOUT.budgets[0],
        round(1e6 * (1 - share)) * LAYOUT.budgets[0],
    )
    found = effects(LAYOUT, clicked, unclicked, 0.0)
    assert warm_start(found, 0.8, 10).reward_variance == pytest.approx(0.09 * 0.91, rel=1e-4)
    assert warm_start(found, None, 10).reward_variance == pytest.approx(share * (1 - share), rel=1e-4)
    assert cold_start(ARMS, LAYOUT.cells, 3).variances[0, 0] == 0.25
