"""Configurations of P-DAP: what cannot be is refused by name, and everything is in the digest."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hushstream.agents.worker.deployment import parse_as
from hushstream.engine.configuration import PartitionConfig, canonical_form, config_digest
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.systems.pdap.configuration import (
    BlockConfig,
    CellConfig,
    EstimateConfig,
    PdapConfig,
    VendorConfig,
)
from hushstream.systems.pdap.system import KIND

NAN, INF = float("nan"), float("inf")
BAD = {
    CellConfig: {
        "branching": [1, 0, 65, 2.0, True, None],
        "split_at": [0, -1, NAN, INF, "400"],
        "growth": [-0.1, NAN, INF, 11, None],
        "levels": [-1, 58, 1.5, None],
        "cap": [0, 65_537, 1.5, None],
    },
    BlockConfig: {
        "epsilon": [0, -1, 20.1, NAN, INF, "1", None],
        "level_growth": [-0.1, NAN, 11, None],
        "placement": ["", "vendor", None],
        "kappa": [0, -1, NAN, INF, None],
        "reward_levels": [0, 257, 1.5, None],
        "first_window": [0, -1, 1.5, None],
        "window_ratio": [1, 0.5, NAN, 101, None],
        "seconds": [0, -1, NAN, INF, "60"],
        "events_per_person": [0, 1_000_001, 1.5],
        "horizon": [0, -1, 1.5],
    },
    EstimateConfig: {
        "reward_variance": [0, -1, NAN],
        "arm_variance": [0, NAN],
        "arm_steps": [(), (0.0,), (0.1, -1.0), (NAN,)],
        "arm_spread": [0, INF],
        "vendor_variance": [0, None],
        "vendor_steps": [(), (0.1, 0.0)],
        "prior_share": [-0.1, 1.1, NAN],
        "temper": [-0.1, NAN, 11],
    },
}
CASES = [(kind, name, value) for kind, named in BAD.items() for name, values in named.items() for value in values]
VENDORS = (VendorConfig("a", 5), VendorConfig("b", 7))
AGE = {"age": {"kind": "number", "range": [16, 96]}}


def settings(**values):
    return PdapConfig(**{"deployment": "test", "vendors": VENDORS, "dimension": 2, **values})


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_value_that_cannot_be_is_refused_by_name(kind, name, value):
    sections = {BlockConfig: "release", CellConfig: "cells", EstimateConfig: "estimate"}
    key = ".".join(KIND.language.key_of((sections[kind], name)))
    with pytest.raises(ConfigurationError, match=f"^{key}: expected"):
        kind(**{name: value})


def test_every_setting_has_a_bad_value_here():
    for kind, named in BAD.items():
        assert {field.name for field in fields(kind)} == set(named)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"vendors": ()}, "vendors: expected at least one"),
        ({"vendors": (VendorConfig("a", 5), VendorConfig("a", 7))}, "vendors: expected names that differ"),
        ({"vendors": (VendorConfig("a", 5, True), VendorConfig("b", 7))}, "vendors.items.named: expected the same"),
        ({"vendors": tuple(VendorConfig(f"v{place}", 1 << 20) for place in range(2))}, "arms in all"),
        ({"dimension": 0}, "dimension: expected"),
        ({"dimension": 11}, "dimension: expected"),
        ({"declared": AGE}, "dimension: expected none beside declared features"),
        ({"dimension": 0, "declared": {"age": {"kind": "number"}}}, "features.age: expected the key range"),
        (
            {"dimension": 0, "declared": {"likes": {"kind": "tags", "vocabulary": ["a"], "most": 1}}},
            "features.likes.kind",
        ),
        (
            {"dimension": 0, "declared": {f"f{one}": {"kind": "boolean"} for one in range(11)}},
            "features: expected at most 10",
        ),
        ({"dimension": 0, "declared": {**AGE, "both": {"kind": "cross", "of": ["age", "age"]}}}, "features"),
        ({"dimension": 10, "cells": CellConfig(levels=6)}, r"at most 2\^57 cells"),
        ({"release": BlockConfig(epsilon=5.0, level_growth=1.0)}, "level_growth that keeps"),
        ({"budget": BudgetConfig(1.0, 1e-6, lift=0.5)}, "budget.lift"),
        ({"deployment": "with space"}, "deployment: expected"),
        ({"system": "p2b"}, "system: expected pdap"),
        ({"partitions": PartitionConfig(shuffler=2)}, "partitions.counter"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(values, match):
    with pytest.raises(ConfigurationError, match=match):
        settings(**values)


@pytest.mark.parametrize(
    "vendor", [("", 1), ("a b", 1), ("a", 0), ("a", 1.5), ("a", 3, 1), ("a", 3, "yes"), ("a", 3, None)]
)
def test_a_vendor_without_name_or_arms_is_refused(vendor):
    with pytest.raises(ConfigurationError):
        VendorConfig(*vendor)


def test_arms_are_numbered_through_vendor_by_vendor():
    assert settings().arms == 12
    assert settings().owners.tolist() == [0] * 5 + [1] * 7


def test_the_smallest_block_of_each_level_is_kappa_over_its_epsilon_rounded_up():
    assert settings(release=BlockConfig(epsilon=0.1)).least_counts == (30,) * 4
    assert settings(release=BlockConfig(epsilon=4.0)).least_counts == (1,) * 4
    assert settings(release=BlockConfig(epsilon=0.1, level_growth=0.5)).least_counts == (30, 22, 15, 11)


def test_whole_numbers_and_floats_of_one_value_have_one_digest():
    assert config_digest(settings(release=BlockConfig(epsilon=1))) == config_digest(
        settings(release=BlockConfig(epsilon=1.0))
    )


def test_settings_that_came_later_leave_the_digest_alone_while_they_are_unused():
    """Taken when there was neither `release.seconds` nor `vendors.named`."""
    shops = PdapConfig("shops", (VendorConfig("one", 3), VendorConfig("two", 4)), 2)
    assert config_digest(shops).hex() == "afc94c8acf4aaf47a58613c260c665b3"


def test_every_setting_is_in_the_digest():
    base = settings()
    changed = [
        replace(base, deployment="other"),
        replace(base, vendors=(VendorConfig("a", 6), VendorConfig("b", 6))),
        replace(base, vendors=(VendorConfig("a", 5, True), VendorConfig("b", 7, True))),
        replace(base, dimension=3),
        replace(base, cells=CellConfig(split_at=401)),
        replace(base, release=BlockConfig(kappa=4)),
        replace(base, release=BlockConfig(seconds=60)),
        replace(base, release=BlockConfig(seconds=61)),
        replace(base, estimate=EstimateConfig(temper=0.4)),
        replace(base, budget=BudgetConfig(3.0, 1e-6)),
    ]
    digests = {config_digest(one) for one in [base, *changed]} | {config_digest(base, public_dataset=True)}
    assert len(digests) == len(changed) + 2


def test_declared_features_are_in_the_file_and_the_digest_and_no_digest_of_numbers_moves():
    text = {"system": "pdap", "deployment": "mall", "vendors": [{"name": "a", "items": {"capacity": 5}}]}
    found = {
        name: parse_as(PdapConfig, {**text, "features": features})
        for name, features in {
            "age": AGE,
            "hour": {"hour": {"kind": "time_of_day"}},
            "numbers": {"dimension": 1},
        }.items()
    }
    assert len({config_digest(one) for one in found.values()}) == 3
    assert found["age"].grid == found["numbers"].grid
    assert KIND.language.written(found["age"])["features"] == {
        "age": {"kind": "number", "range": [16.0, 96.0], "scale": "linear", "nodes": 8}
    }
    assert b"declared" not in canonical_form(found["numbers"], False)
