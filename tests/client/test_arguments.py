"""A context as an application gives it: plain lists take a short way, to the same bytes and the same refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushstream.client import BadContext
from hushstream.client.arguments import vector_of

NUMBERS = st.one_of(st.floats(), st.floats(width=32), st.integers(-(2**130), 2**130), st.booleans())


@given(st.lists(NUMBERS, max_size=40))
def test_a_list_becomes_what_an_array_of_it_becomes(numbers: list[Any]) -> None:
    found: list[Any] = []
    for context in (numbers, np.array([float(one) for one in numbers])):
        try:
            found.append(vector_of(context).tobytes())
        except BadContext as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "context", [["x"], [None], [[0.5]], [1e39, -1e39], [float("inf"), float("-inf")], [float("nan")], "0.5", [{}]]
)
def test_what_is_no_vector_of_finite_numbers_is_refused(context: Any) -> None:
    with pytest.raises(BadContext, match="expected a vector"):
        vector_of(context)
