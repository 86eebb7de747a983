"""Whether sharing pays, said from a run of records."""

from __future__ import annotations

import pytest

from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.replay.run import options_of, run_with
from hushstream.replay.studies.pdol.run import TRIED


@pytest.mark.parametrize("prediction", ["released", "node"])
def test_where_no_epsilon_helps_that_is_said_up_to_the_largest_that_is_allowed(prediction):
    """A few records of many features: nothing that is shared can be better than chance."""
    config = {"deployment": "few", "release": {"window_units": 20, "horizon": 8}, "prediction": {"place": prediction}}
    world = {"records": 240, "dimension": 60, "nodes": 4}
    played = run_with(
        options_of(
            "pdol", {"runner": "direct", "config": config, "dataset": "sparse-synthetic", "seed": 3, "world": world}
        )
    )
    assert max(TRIED) == LARGEST_EPSILON
    assert played.payoff.otherwise == "keep apart, as one draw of noise pays at no epsilon up to 20 on these records"
