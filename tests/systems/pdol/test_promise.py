"""What PDOL promises and foretells, and deployments of declared features."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare, written
from hushstream.agents.worker.roles import all_machines
from hushstream.client import BadContext, RecordClient
from hushstream.engine.system import require_person_promised
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.conversation.predictions import PredictionAsked
from hushstream.privacy.promises.sentence import bounds
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.systems.pdol.algorithm.rows import PdolError
from hushstream.systems.pdol.configuration import (
    UNIT,
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
    pdol_digest,
)
from hushstream.systems.pdol.guarantee import epoch_guarantee, person_prices
from hushstream.systems.pdol.plan import sharing_gain


def tmc(epsilon: float = 1.0, records: int = 1, **options) -> PdolConfig:
    return PdolConfig("x", 64, RecordConfig(501, records), SharingConfig("blt", epsilon, 1e-6, 14, 32), **options)


@pytest.mark.parametrize(("records", "epsilon"), [(1, 1.0), (2, 2.11), (4, 4.55), (10, 13.26)])
def test_records_of_one_person_cost_the_square_of_their_number(records, epsilon):
    found = person_prices(tmc(), [records]).zero_out.epsilon_micro / 1e6
    assert found == pytest.approx(epsilon, abs=0.005)
    assert found == pytest.approx(epoch_guarantee(tmc(records=records)).lifetime.cost.epsilon_micro / 1e6)


def test_a_person_is_promised_nothing_that_no_place_counts():
    """A user with one record at each of eight nodes pays epsilon 3.09, where one node counts one record.

    Against other records 32 rho, 6.73: noise is independent over nodes, and each record moves 2 Delta at one of them.
    """
    prices = person_prices(tmc(), [1] * 8)
    assert prices.zero_out.epsilon_micro / 1e6 == pytest.approx(3.09, abs=0.005)
    assert prices.which.epsilon_micro / 1e6 == pytest.approx(6.73, abs=0.005)
    distance = math.sqrt(2 * 32 * epoch_guarantee(tmc()).rho_micro / 1e6)
    epsilon = prices.which.epsilon_micro / 1e6
    true = stats.norm.cdf(distance / 2 - epsilon / distance)
    true -= math.exp(epsilon) * stats.norm.cdf(-distance / 2 - epsilon / distance)
    assert 1e-7 < true <= 1e-6
    said = f"{bounds(person_prices(tmc(), [1] * 64))}, so nothing is guaranteed, as rho grows"
    assert said in epoch_guarantee(tmc()).conditions[0]
    dealt = replace(tmc().sharing, domains=2)
    one = replace(tmc(), sharing=replace(dealt, domains=1))
    many = [tmc(), replace(tmc(), sharing=dealt)]
    for config in (*many, one, replace(tmc(), nodes=1)):
        promise = epoch_guarantee(config)
        assert promise.lifetime.counted is (config not in many)
        said = "nobody counts all records of one person" in promise.sentence()
        assert said is (config in many)
        assert promise.sentence().startswith("Record-level" if said else "User-level"), "a promise names who counts"
        assert ("a person has one user name" in " ".join(promise.conditions)) is not said
    with pytest.raises(ConfigurationError, match=r"nobody counts a person's records .* {person: unprotected}"):
        require_person_promised(tmc(), epoch_guarantee(tmc()), "here")


def test_a_record_against_another_costs_four_times_rho():
    promise = epoch_guarantee(tmc())
    assert promise.cost.epsilon_micro <= 1_000_000
    assert promise.replace_one.epsilon_micro / 1e6 == pytest.approx(2.112, abs=1e-3)
    assert promise.marks == ()


def test_who_predicts_at_nodes_is_told_whom_it_protects():
    place = PredictionConfig("released")
    assert any("outsiders alone" in fact for fact in epoch_guarantee(tmc()).not_protected)
    assert not any("outsiders alone" in fact for fact in epoch_guarantee(tmc(prediction=place)).not_protected)


def test_sums_without_noise_promise_nothing():
    config = PdolConfig("x", 2, RecordConfig(5), SharingConfig("exact"))
    promise = epoch_guarantee(config)
    assert promise.cost.delta_units == 1 << 80
    assert not promise.private_as_stated
    assert promise.unnoised == ("releases", "models")
    with pytest.raises(PdolError, match="sums with noise"):
        person_prices(config, [1])


@pytest.mark.parametrize(
    ("config", "records", "crossing", "lead", "verdict"),
    [
        (tmc(8.0), 447, 15.6, None, "may or may not beat nodes alone"),
        (tmc(8.0), 447, 15.6, 0.05, "may or may not beat nodes alone"),
        (tmc(8.0), 447, 15.6, 0.2, "will beat nodes alone"),
        (replace(tmc(8.0), prediction=PredictionConfig("released")), 447, 15.6, 0.2, "may or may not beat nodes alone"),
        (tmc(8.0), 447, 15.6, -0.01, "will not beat nodes alone"),
        (tmc(0.5), 447, 2432, 0.2, "will not beat nodes alone"),
        (tmc(1.0), 447, 663, 0.2, "may or may not beat nodes alone"),
    ],
)
def test_the_plan_names_the_crossing_and_says_so_plainly(config, records, crossing, lead, verdict):
    ahead = sharing_gain(config, records, lead=lead)
    assert ahead.crossing == pytest.approx(crossing, rel=0.01)
    assert ahead.verdict == verdict
    assert verdict in "\n".join(ahead.sentences)
    assert "of what they teach without it (range: " in ahead.sentences[2]
    assert ("points of correct predictions" in ahead.sentences[2]) == (ahead.correct is not None)


def test_guarded_nodes_gain_the_share_of_a_lead_that_noise_leaves_and_never_lose_more_than_the_guards_credit():
    """Up to four times less noise than computed, and a point beyond; in drawn worlds the share holds."""
    noise = sharing_gain(tmc(8.0), 447).crossing * 63
    found = sharing_gain(tmc(8.0), 447, lead=0.1).correct
    assert found.low == -5 / 447
    assert found.middle == pytest.approx(0.1 * 447 / (447 + noise))
    assert found.high == pytest.approx(0.1 * 447 / (447 + noise / 4) + 0.01)
    assert sharing_gain(tmc(8.0), 447, lead=-0.1).correct == (-5 / 447, 0, 0.01)
    assert sharing_gain(replace(tmc(8.0), prediction=PredictionConfig("released")), 447, lead=0.1).correct is None
    assert sharing_gain(tmc(8.0), 447).correct is None, "nobody stated a lead"


def test_sharing_does_not_help_with_what_no_other_node_has():
    assert sharing_gain(tmc(8.0), 447, private_features=1 / 3).verdict == "will not beat nodes alone"
    assert sharing_gain(replace(tmc(8.0), nodes=1), 447).crossing is None


def test_the_crossing_is_where_the_expected_gain_begins():
    for nodes, domains in ((64, 64), (64, 1), (8, 4)):
        sharing = SharingConfig("blt", 2.0, 1e-6, 14, 32, domains)
        config = PdolConfig("x", nodes, RecordConfig(501), sharing)
        crossing = sharing_gain(config, 100).crossing * domains / nodes
        assert sharing_gain(config, 0.99 * crossing).gain == 0
        assert 0 < sharing_gain(config, 1.01 * crossing).gain < 0.01
        assert sharing_gain(config, 1e9).gain == pytest.approx(1, abs=1e-3)


def test_nodes_are_dealt_to_domains_evenly():
    config = PdolConfig("x", 10, RecordConfig(5), SharingConfig(domains=4))
    dealt = [config.domain_of(node) for node in range(10)]
    assert dealt == sorted(dealt)
    assert {dealt.count(domain) for domain in range(4)} <= {2, 3}


def test_sums_that_could_leave_the_lattice_are_refused():
    with pytest.raises(ConfigurationError, match=r"expected sums below 2\^32"):
        epoch_guarantee(
            PdolConfig("x", 2, RecordConfig(129), SharingConfig(slots_per_release=1 << 16, horizon=1 << 10))
        )


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


def test_what_is_learned_of_named_values_foretells_the_label(tmp_path):
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


def test_bad_values_are_refused_by_name_before_anything_is_sent(tmp_path):
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


def test_names_without_a_declaration_are_refused():
    client = RecordClient(DirectEventLog(MemoryLog(), None, NODES, "predictions"), NODES, 8)  # type: ignore[arg-type]
    with pytest.raises(BadContext, match="8 coordinates, got names"):
        asyncio.run(client.predict("e", "u", 0, {"age": 3}))


def test_a_declaration_is_in_the_digest():
    named, numbers = config_of(WARDS), config_of({"dimension": 21})
    assert named.records.dimension == 1 + named.records.declared.cells
    assert parse_config(written(named)) == named
    other = config_of({**WARDS, "age": {"kind": "number", "range": [0, 99]}})
    assert len({pdol_digest(one) for one in (named, numbers, other)}) == 3


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
def test_a_declaration_that_cannot_be_is_refused(features, message):
    with pytest.raises(ConfigurationError, match=message):
        config_of(features)


def test_a_gateway_takes_values_by_name_in_place_of_coordinates():
    asked = PredictionAsked(event_id="e", user="u", node=0, record={"age": 3})
    assert (asked.record, asked.indices) == ({"age": 3}, [])
    with pytest.raises(ValueError, match="none beside values by name"):
        PredictionAsked(event_id="e", user="u", node=0, record={"age": 3}, indices=[0], values=[1.0])
