"""The stream on Apache Kafka: the same workers, the same client, one option."""

from __future__ import annotations

import os
import uuid

import pytest

from hushstream.replay.catalogue import options_of, run_with

BOOTSTRAP = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(
        not BOOTSTRAP, reason="needs Apache Kafka: start one with `make kafka-up` and set HUSHSTREAM_TEST_BOOTSTRAP"
    ),
]


def options(deployment: str) -> dict[str, object]:
    return {
        "dataset": "synthetic",
        "seed": 3,
        "world": {"users": 80},
        "config": {
            "deployment": deployment,
            "encoder": {"codes": 4},
            "partitions": {"learner": 2, "shuffler": 1},
        },
    }


def test_a_run_on_kafka_equals_the_direct_run_and_verifies():
    deployment = f"k{uuid.uuid4().hex[:12]}"
    stream = run_with(options_of("p2b", {"runner": "stream", "bootstrap": BOOTSTRAP, **options(deployment)}))
    direct = run_with(options_of("p2b", {"runner": "direct", **options(deployment)}))
    assert (stream.rows, stream.curve) == (direct.rows, direct.curve)
    assert stream.verify is not None
    assert {role: check.status for role, check in stream.verify.items()} == dict.fromkeys(stream.verify, "equal")


SHAPES = {
    "released": {"release": {"window_units": 20, "horizon": 8, "domains": 2}},
    "node": {"release": {"window_units": 20, "horizon": 8}, "prediction": {"place": "node"}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_records_and_their_nodes_on_kafka_give_the_predictions_of_the_direct_run_and_verify(shape):
    records = {"dataset": "sparse-synthetic", "seed": 3, "world": {"records": 240, "dimension": 60, "nodes": 4}}
    config = {"deployment": f"k{uuid.uuid4().hex[:12]}", **SHAPES[shape]}
    stream = run_with(options_of("pdol", {"runner": "stream", "bootstrap": BOOTSTRAP, "config": config, **records}))
    direct = run_with(options_of("pdol", {"runner": "direct", "config": config, **records}))
    assert (stream.rows, stream.curve) == (direct.rows, direct.curve)
    assert stream.verify is not None
    assert {role: check.status for role, check in stream.verify.items()} == dict.fromkeys(stream.verify, "equal")
