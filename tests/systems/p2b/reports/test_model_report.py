"""What a released model says of itself: planted preferences are found, with how sure it is, from the record alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hushstream.features.schema import declare
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.contribution.feature_slots import pack_reports
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.system import declare as declared_system

ARMS, SLOTS = 3, 3_000
FEATURES = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "age": {"kind": "number", "range": [16, 96]}}


def features_system(epsilon: float = 4.0) -> P2BSystem:
    release = ReleaseConfig(form="features", epsilon=epsilon, window_slots=SLOTS, sums="fresh")
    context = ContextConfig(declared=declare(FEATURES))
    return P2BSystem.declared(P2BConfig("shop", ARMS, context, 2 * SLOTS, slot=SlotConfig(1), release=release))


def released(rigs: Any, system: P2BSystem, contents: list[bytes]) -> list[bytes]:
    """The models of slots, through the roles."""
    shuffler, aggregator = rigs.ShufflerRig(system), rigs.AggregatorRig(system)
    for number, content in enumerate(contents):
        place = {
            "report_id": number.to_bytes(16, "big"),
            "period": (shuffler.now_ms // 86_400_000).to_bytes(8, "little"),
            "config_digest": system.digest,
        }
        shuffler.put("reports", codec.encode(system.form.slot_record, {**place, "content": content}))
    seen = shuffler.fold()
    assert not seen.reasons
    made = aggregator.give(out.value for out in seen.releases("crowds"))
    assert not made.reasons
    return [step.journal for step in made.steps if step.journal is not None]


def visits(system: P2BSystem, liked: int, seed: int) -> list[bytes]:
    """Slots of users of whom those of "fr" like one item, half of the time, and all else a tenth."""
    layout, draw = system.linear.layout, np.random.default_rng(seed)
    french, arms = draw.random(SLOTS) < 0.5, draw.integers(0, ARMS, SLOTS)
    columns = {"country": np.where(french, "fr", "de").tolist(), "age": draw.uniform(16, 96, SLOTS)}
    rows = layout.schema.encode_columns(columns).rows
    clicked = draw.random(SLOTS) < np.where(french & (arms == liked), 0.5, 0.1)
    units = layout.units_of(layout.schema.blocks(rows))
    return pack_reports(layout, arms.astype(np.int64), clicked.astype(np.int64), 0, units)


def test_a_planted_preference_is_shown_for_its_cell_and_no_other(rigs: Any) -> None:
    system = features_system()
    view = declared_system(system).models
    (model,) = released(rigs, system, visits(system, 2, 7))
    found = view.read([model], None, {}).as_json()
    best = {segment["cell"]: segment for segment in found["segments"]}
    french = next(one for cell, one in best.items() if "fr" in cell)
    assert french["item"] == 2
    assert french["sure"] > 0.99
    # Linear around the mean rate, as learners take it: less than the half that is planted.
    assert 0.3 < french["reward"] < 0.5
    assert found["items"][2]["reward"] < 0.3
    assert found["observations"] == pytest.approx(SLOTS, rel=0.05)
    text = view.read([model], None, {}).as_text()
    assert text.startswith("REPRODUCIBLE, NOT PRIVATE\nVersion 1, ")
    assert f"{french['cell']}: item 2 (" in text


def test_less_epsilon_is_more_of_the_noise(rigs: Any) -> None:
    shares = []
    for epsilon in (0.5, 4.0):
        system = features_system(epsilon)
        (model,) = released(rigs, system, visits(system, 2, 7))
        shares.append(declared_system(system).models.read([model], None, {}).noise)
    for block in ("country", "age", "an item's own reward"):
        assert 0 < shares[1][block] < shares[0][block] < 1


def test_two_versions_differ_where_tastes_do(rigs: Any) -> None:
    """In the second window, which is alike but for it, the liked item is another, so neither is sure any more."""
    system = features_system()
    view = declared_system(system).models
    models = released(rigs, system, [*visits(system, 2, 7), *visits(system, 1, 8)])
    older, newer = view.read(models, 1, {}), view.read(models, None, {})
    assert (older.version, newer.version) == (1, 2)
    change = view.change(older, newer).as_json()
    assert change["moved"][0]["item"] in (1, 2)
    assert {row["item"]: row["by"] for row in change["moved"]}[1] > 0
    assert view.change(older, older).as_json()["changed"] == []
    with pytest.raises(HushstreamError, match="version 3"):
        view.read(models, 3, {})


def test_codes_are_shown_as_features_are(rigs: Any) -> None:
    config = P2BConfig(
        "shop",
        ARMS,
        ContextConfig(3),
        SLOTS,
        slot=SlotConfig(1),
        release=ReleaseConfig(epsilon=4.0, window_slots=SLOTS),
    )
    system = P2BSystem.fitted(config)
    draw = np.random.default_rng(3)
    arms, codes = draw.integers(0, ARMS, SLOTS), draw.integers(0, system.codes, SLOTS)
    clicked = draw.random(SLOTS) < np.where(arms == 1, 0.6, 0.1)
    contents = [pack(Report(int(c), int(a), int(r))) for c, a, r in zip(codes, arms, clicked, strict=True)]
    found = declared_system(system).models.read(released(rigs, system, contents), None, {})
    assert [segment.item.item for segment in found.segments()] == [1] * system.codes
    assert found.own[1] == pytest.approx(0.6, abs=0.06)
    assert 0 < found.noise["a cell (code, item)"] < 0.5


def test_before_a_window_there_is_no_model() -> None:
    with pytest.raises(HushstreamError, match="expected a released model on topic models, got none"):
        declared_system(features_system()).models.read([], None, {})


def test_a_record_of_somebody_else_among_the_models_hides_none(rigs: Any) -> None:
    system = features_system()
    view = declared_system(system).models
    released_models = released(rigs, system, visits(system, 2, 7))
    shown = view.read(released_models, None, {}).as_json()
    assert view.read([b"garbage", *released_models, b"", released_models[0][:-1]], None, {}).as_json() == shown
