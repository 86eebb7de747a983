"""Records of declared features: a dict goes in, the client validates it, and nodes take what they always take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare, written
from hushstream.agents.worker.roles import all_machines
from hushstream.client import BadContext, RecordClient
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.conversation.predictions import PredictionAsked
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec
from hushstream.systems.pdol.configuration import UNIT, PdolConfig, RecordConfig, pdol_digest

WARDS = {
    "age": {"kind": "number", "range": [0, 100]},
    "ward": {"kind": "category", "vocabulary": ["north", "south", "west"]},
    "signs": {"kind": "tags", "vocabulary": ["cough", "fever"], "most": 2},
    "scan": {"kind": "embedding", "dimension": 3},
}
NODES = 2


def config_of(features: Any, **release: Any) -> Any:
    settings = {"mechanism": "exact", "window_units": 25, "horizon": 8, **release}
    return parse_config(
        {"system": "pdol", "deployment": "wards", "nodes": NODES, "features": features, "release": settings}
    )


def played(folder: Path, play: Callable[[RecordClient], Awaitable[Any]]) -> tuple[Any, MemoryLog]:
    system = prepare(folder, config_of(WARDS), public_dataset="wards")
    log = MemoryLog(lambda: 1_700_000_000_000)
    driver = DirectDriver(log, all_machines(system, KeySource(seed=1)), bytes(32))

    async def run() -> Any:
        async with RecordClient(DirectEventLog(log, driver, NODES, "predictions"), *system.requests) as client:
            return await play(client)

    return asyncio.run(run()), log


def visit(draw: np.random.Generator) -> tuple[dict[str, Any], int]:
    """Whose label follows ward and age; some values are missing, unknown or out of range."""
    ward, age = str(draw.choice(["north", "south", "west"])), float(draw.integers(-20, 120))
    return {
        "ward": ward,
        "age": age,
        "signs": ["cough", "of old"],
        "scan": None,
    }, 1 if ward == "north" or age > 50 else -1


def test_what_is_learned_of_named_values_foretells_the_label(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)

    async def play(client: RecordClient) -> list[bool]:
        right = []
        for number in range(400):
            values, label = visit(draw)
            node, event, user = number % NODES, f"e{number}", f"u{number}"
            found = await client.predict(event, user, node, values)
            right.append(found.label == label)
            await client.label(event, user, node, label)
            if number % 100 == 99:
                await client.end_phase(number // 100)
        return right

    right, log = played(tmp_path, play)
    # A coin would be right in 100 of the last 200, and in more than 150 with probability 1e-12; the seed is fixed.
    assert sum(right[200:]) > 150
    records = [codec.decode(one.value)[1] for _, held in log.partitions() for one in held]
    squares = [sum(np.frombuffer(one["values"], "<i4").astype(np.int64) ** 2) for one in records if "indices" in one]
    assert len(squares) == 400
    assert all(0.99 * UNIT**2 < square <= UNIT**2 for square in squares), "of norm 1, and never longer"


def test_bad_values_are_refused_by_name_before_anything_is_sent(tmp_path: Path) -> None:
    bad: list[tuple[Any, Any, str]] = [
        ({"agee": 3}, None, "names among age, scan"),
        ({"age": "old"}, None, "age"),
        ({"age": float("nan")}, None, "age"),
        ({"scan": [1.0]}, None, "scan"),
        ({"age": 30}, [1.0], "by name alone"),
        ([0], [1.0], "by name"),
        ([0], None, "by name"),
    ]

    async def play(client: RecordClient) -> None:
        for record, values, words in bad:
            with pytest.raises(BadContext, match=words) as caught:
                await client.predict("e", "u", 0, record, values)
            assert "old" not in str(caught.value)
        assert (await client.predict("e", "u", 0, {})).label in (1, -1), "all of it is missing"

    _, log = played(tmp_path, play)
    assert sum(len(held) for (topic, _), held in log.partitions() if topic == "records") == 1


def test_names_without_a_declaration_are_refused() -> None:
    client = RecordClient(DirectEventLog(MemoryLog(), None, NODES, "predictions"), NODES, 8)  # type: ignore[arg-type]
    with pytest.raises(BadContext, match="8 coordinates, got names"):
        asyncio.run(client.predict("e", "u", 0, {"age": 3}))


def test_a_declaration_is_in_the_digest_and_numbers_keep_theirs() -> None:
    named, numbers = config_of(WARDS), config_of({"dimension": 21})
    assert named.records.dimension == 1 + named.records.declared.cells
    assert parse_config(written(named)) == named
    other = config_of({**WARDS, "age": {"kind": "number", "range": [0, 99]}})
    assert len({pdol_digest(one) for one in (named, numbers, other)}) == 3
    plain = PdolConfig("d", 2, RecordConfig(9))
    assert pdol_digest(plain).hex() == "bc7e6cd4e4691fe7e06471eee58eb959"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({**WARDS, "dimension": 5}, "dimension"),
        ({"age": {"kind": "number"}}, "features.age: expected the key range"),
        ({}, "features"),
        ({"age": {"kind": "number", "range": [9, 1]}}, "age"),
        ({"ward": {"kind": "category", "vocabulary": ["a", "a"]}}, "ward"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(features: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config_of(features)


def test_a_gateway_takes_values_by_name_in_place_of_coordinates() -> None:
    asked = PredictionAsked(event_id="e", user="u", node=0, record={"age": 3})
    assert (asked.record, asked.indices) == ({"age": 3}, [])
    with pytest.raises(ValueError, match="none beside values by name"):
        PredictionAsked(event_id="e", user="u", node=0, record={"age": 3}, indices=[0], values=[1.0])
