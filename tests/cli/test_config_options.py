"""The reference of a configuration: whole, true, and in one place, the docstrings of its classes."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
import yaml

from hushstream.agents.worker.deployment import parse_config
from hushstream.cli.configure.config_options import settings
from hushstream.replay.configurations import nested
from hushstream.replay.meanings import meanings
from hushstream.systems.catalogue import kinds

CONFIGURATIONS = {name: kind.config for name, kind in kinds().items()}
NEEDED = {
    "p2b": {"deployment": "shop", "items.capacity": 3, "features.dimension": 4, "expected_slots": 100},
    "colin": {"deployment": "shop", "items.capacity": 3, "features.dimension": 4},
    "pdap": {
        "deployment": "shop",
        "vendors": [{"name": "one", "items": {"capacity": 3}}],
        "features.dimension": 2,
    },
    "pdol": {"deployment": "shop", "nodes": 3, "features.dimension": 4},
    "bgt": {"deployment": "shop", "items.capacity": 9},
}


def _classes(made):
    """A configuration class and all sections below it."""
    yield made
    for hint in get_type_hints(made).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part):
                yield from _classes(part)


CLASSES = sorted({each for made in CONFIGURATIONS.values() for each in _classes(made)}, key=lambda made: made.__name__)


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_every_field_of_every_configuration_has_a_meaning_and_nothing_else_has(made):
    said = meanings(made)
    assert list(said) == [one.name for one in fields(made)], inspect.getdoc(made)
    assert all(len(meaning) > 5 and meaning.endswith(".") for meaning in said.values())


@pytest.mark.parametrize("system", CONFIGURATIONS)
def test_the_defaults_are_those_that_a_configuration_has_and_yaml_reads_them(system):
    listed = settings(kinds()[system])
    inside = {
        one.name
        for one in listed
        if one.name.startswith(("privacy.lifetime.", "vendors.", "gossip.")) or one.name == "features"
    }
    required = {one.name for one in listed if one.default is None and one.type != "section"} - inside
    # Features that are declared by name take the place of a histogram and its dimension.
    assert required == set(NEEDED[system]) - ({"features.dimension"} if system in ("p2b", "pdap", "pdol") else set())
    values = {
        one.name: yaml.safe_load(one.default) for one in listed if one.default is not None and one.type != "section"
    }
    whole = {name: value for name, value in values.items() if name not in inside} | NEEDED[system]
    assert parse_config(nested(whole, "test")) == parse_config(nested({**NEEDED[system], "system": system}, "test"))


@pytest.mark.parametrize(
    ("system", "name", "type_", "default", "says"),
    [
        ("colin", "release.noise", None, "laplace", "gaussian"),
        ("colin", "release.mechanism", None, "negative-digit", "noisy-reward"),
        ("colin", "learner.alpha", "number | lemma", "0.1", "lemma"),
        ("colin", "learner.self_weight", "number", "1.0", "CoLin"),
        ("colin", "feedback.reward_levels", "whole number", "256", "noisy-reward"),
        ("colin", "privacy.epochs", "whole number", "1", "budget"),
        ("colin", "release.window_units", "whole number", "256", "rewards"),
        ("p2b", "holdout.share", "number", "0.0", "switches the lift off"),
        ("p2b", "privacy.delta", "number", "1.0e-06", "threshold"),
        ("p2b", "encoder.codes", "whole number | auto", "auto", "auto picks"),
        ("p2b", "privacy.lifetime", "section | null", "null", "limits"),
    ],
)
def test_a_setting_can_be_looked_up(cli, system, name, type_, default, says):
    answer = cli("config", "options", "--system", system, "--json")
    assert (answer.code, answer.err, set(answer.json)) == (0, "", {system})
    found = next(one for one in answer.json[system] if one["name"] == name)
    assert type_ in (None, found["type"])
    assert found["default"] == default
    assert says in found["meaning"]


def test_without_a_system_all_are_printed_and_nothing_is_cut(cli):
    whole = cli("config", "options", "--json").json
    assert list(whole) == sorted(kinds())
    printed = cli("config", "options")
    assert printed.code == 0
    words = " ".join(printed.out.split())
    for system, listed in whole.items():
        assert f"system: {system}" in words
        for one in listed:
            assert one["name"] in words
            assert one["default"] is None or one["default"] in words
    assert "HUSHSTREAM__PRIVACY__EPSILON=0.5" in words
