"""Records become whole numbers, or null slots: the count of slots never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.systems.pdol.conftest import join_rows

from hushstream.systems.pdol.algorithm.rows import (
    BadRows,
    Refusal,
    Rows,
    admit,
    null_rows,
    quantise,
    sums_by_row,
    unit_rows,
)
from hushstream.systems.pdol.configuration import UNIT

NAN, INF = float("nan"), float("inf")
GOOD = ([0, 2], [0.6, 0.8], 1)


def quantised(*records: tuple[list[int], list[float], int], dimension: int = 4) -> tuple[Rows, list[int]]:
    ends = np.cumsum([0, *(len(indices) for indices, _, _ in records)])
    indices = np.array([index for one, _, _ in records for index in one], dtype=np.int64)
    values = np.array([value for _, one, _ in records for value in one], dtype=np.float64)
    labels = np.array([label for _, _, label in records], dtype=np.int64)
    rows, why = quantise(ends, indices, values, labels, dimension)
    return rows, why.tolist()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (([0, 1], [0.1, NAN], 1), Refusal.NOT_FINITE),
        (([0, 1], [0.1, INF], 1), Refusal.NOT_FINITE),
        (([0, 1], [0.1, -INF], -1), Refusal.NOT_FINITE),
        (([0, 4], [0.1, 0.1], 1), Refusal.INDEX),
        (([0, -1], [0.1, 0.1], 1), Refusal.INDEX),
        (([1, 1], [0.1, 0.1], 1), Refusal.ORDER),
        (([0, 1], [0.8, 0.8], 1), Refusal.LENGTH),
        (([0], [1.0000001], 1), Refusal.LENGTH),
        (([0], [1e300], 1), Refusal.LENGTH),
        (([0], [-9e18], 1), Refusal.LENGTH),
        (([0], [0.5], 0), Refusal.LABEL),
        (([0], [0.5], 2), Refusal.LABEL),
        (([0], [0.5], -3), Refusal.LABEL),
        (([0], [0.5], 255), Refusal.LABEL),
        (([0], [0.5], 257), Refusal.LABEL),
    ],
)
def test_a_record_that_breaks_a_bound_is_a_null_slot_and_its_neighbours_are_as_they_were(record, why):
    rows, reasons = quantised(GOOD, record, GOOD)
    alone, _ = quantised(GOOD)
    assert reasons == [Refusal.TAKEN, why, Refusal.TAKEN]
    assert len(rows) == 3
    assert rows.labels.tolist() == [1, 0, 1]
    assert rows.lengths.tolist() == [2, 0, 2]
    for place in (0, 2):
        part = rows.part(place, place + 1)
        assert (part.indices.tolist(), part.values.tolist()) == (alone.indices.tolist(), alone.values.tolist())


def test_values_are_cut_toward_zero_and_indices_sorted():
    rows, _ = quantised(([3, 0], [-0.7999, 0.59999], -1))
    assert rows.indices.tolist() == [0, 3]
    assert rows.values.tolist() == [int(0.59999 * UNIT), -int(0.7999 * UNIT)]


def test_a_norm_that_is_one_in_floats_alone_decides_nothing():
    """Whole numbers decide: 4096 and 1 are too long together, though the float norm rounds to one."""
    ok, _ = admit(_one_row([0], [UNIT]), 4)
    assert ok.labels.tolist() == [1]
    _, why = admit(_one_row([0, 1], [UNIT, 1]), 4)
    assert why.tolist() == [Refusal.LENGTH]


@pytest.mark.parametrize("value", [UNIT + 1, -UNIT - 1, 1 << 31, 1 << 32, -(1 << 63), (1 << 63) - 1])
def test_numbers_whose_square_wraps_around_are_too_long(value):
    """(2^32)^2 is 0 in 64 bits."""
    rows, why = admit(_one_row([0], [value]), 4)
    assert why.tolist() == [Refusal.LENGTH]
    assert rows.lengths.tolist() == [0]


@pytest.mark.parametrize(
    ("indices", "label", "why"),
    [
        ([1, 0], 1, Refusal.ORDER),
        ([1, 1], 1, Refusal.ORDER),
        ([0, 4], 1, Refusal.INDEX),
        ([-1, 0], 1, Refusal.INDEX),
        ([0, 1], 0, Refusal.LABEL),
        ([0, 1], -2, Refusal.LABEL),
    ],
)
def test_a_node_checks_what_arrives_again(indices, label, why):
    rows = _one_row(indices, [1, 1], label)
    null, reasons = admit(rows, 4)
    assert reasons.tolist() == [why]
    assert (len(null), null.lengths.tolist(), null.labels.tolist()) == (1, [0], [0])


def test_null_slots_pass_and_order_is_judged_within_a_record():
    rows = join_rows([_one_row([2, 3], [1, 1]), null_rows(2), _one_row([0, 1], [1, 1])])
    same, why = admit(rows, 4)
    assert not why.any()
    assert same is rows


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(-2, 9), st.floats(width=64)), max_size=6),
            st.sampled_from([1, -1, 1, -1, 0, 7]),
        ),
        max_size=8,
    )
)
def test_whatever_comes_every_slot_that_is_left_keeps_the_bounds(records):
    rows, why = quantised(
        *(([index for index, _ in features], [value for _, value in features], label) for features, label in records),
        dimension=8,
    )
    assert len(rows) == len(records)
    assert (sums_by_row(rows.values**2, rows.indptr) <= UNIT * UNIT).all()
    assert ((rows.indices >= 0) & (rows.indices < 8)).all()
    assert [label == 0 for label in rows.labels] == [reason != 0 for reason in why]


def test_columns_that_make_no_rows_are_refused():
    zero = np.zeros(1, dtype=np.int64)
    with pytest.raises(BadRows, match="row ends that rise"):
        quantise(np.array([0, 2, 1]), zero, np.zeros(1), np.ones(2, dtype=np.int64), 4)
    with pytest.raises(BadRows, match="as many values as indices"):
        quantise(np.array([0, 1]), zero, np.zeros(2), np.ones(1, dtype=np.int64), 4)
    with pytest.raises(BadRows, match="one column of int32"):
        Rows(np.zeros(1, dtype=np.int64), zero, zero, np.zeros(0, dtype=np.int8))
    for ends in ([0, 2, 1], [1, 1, 1], [0, 0, 0]):
        with pytest.raises(BadRows, match="row ends that rise"):
            Rows(np.array(ends), np.zeros(1, dtype=np.int32), zero, np.ones(2, dtype=np.int8))


def test_unit_rows_scales_each_record_and_leaves_zeros():
    ends = np.array([0, 2, 2, 3, 4])
    scaled = unit_rows(ends, np.array([3.0, 4.0, 0.0, -2.0]))
    assert scaled.tolist() == [0.6, 0.8, 0.0, -1.0]


def test_taking_and_parting_rows_agree():
    rows, _ = quantised(GOOD, ([1], [0.5], -1), ([0], [NAN], 1), ([1, 3], [0.1, 0.2], 1))
    for low, high in ((0, 4), (1, 3), (2, 2), (3, 4)):
        part, taken = rows.part(low, high), rows.take(np.arange(low, high))
        for name in ("indptr", "indices", "values", "labels"):
            assert getattr(part, name).tolist() == getattr(taken, name).tolist()


def _one_row(indices: list[int], values: list[int], label: int = 1) -> Rows:
    return Rows(
        np.array([0, len(indices)], dtype=np.int64),
        np.array(indices, dtype=np.int32),
        np.array(values, dtype=np.int64),
        np.array([label], dtype=np.int8),
    )
