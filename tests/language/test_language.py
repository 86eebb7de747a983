"""One configuration language: a key means the same in every system, and no key is part of a digest."""

from __future__ import annotations

import math
from dataclasses import make_dataclass
from pathlib import Path
from typing import get_args

import pytest
import yaml

from hushstream.agents.worker.deployment import parse_config, read_config, written
from hushstream.cli.configure.config_options import settings, shared
from hushstream.engine import language
from hushstream.engine.configuration import canonical_form
from hushstream.engine.language import SHARED, UNITS, Language
from hushstream.engine.values import ConfigurationError
from hushstream.replay.checks import nested
from hushstream.systems.catalogue import kinds

WHOLE = sorted(Path(__file__).with_name("whole").glob("*.yaml"))
"""Configurations with a value of its own for nearly every key, a file for each form of a system."""
SYSTEMS = {name: kind.language for name, kind in kinds().items()}


def leaves(values, above=()):
    """The values of keys, by path; lists, and features that are declared by name, whole."""
    found = {}
    for name, value in values.items():
        inside = isinstance(value, dict) and bool(value)
        found |= leaves(value, (*above, name)) if inside else {(*above, name): value}
    return found


@pytest.mark.parametrize("key", SHARED)
def test_a_shared_key_is_of_at_least_two_systems_and_takes_the_same_values_in_each(key):
    having = {name: [one for one in each.keys if one.name == key] for name, each in SYSTEMS.items()}
    having = {name: found for name, found in having.items() if found}
    assert len(having) >= 2
    units = {
        one.unit(kinds()[name].unit).replace(kinds()[name].unit, "unit")
        for name, found in having.items()
        for one in found
    }
    assert len(units) == 1, units
    if key not in TAKES_ITS_OWN_VALUES:
        types = {frozenset(_plain(one.hint)) for found in having.values() for one in found}
        assert len({frozenset(kind - {"null", "auto"}) for kind in types}) == 1, types


TAKES_ITS_OWN_VALUES = {"system", language.MECHANISM, language.WINDOW_UNITS}
"""Names of what each system has; and pdol's windows may have one size for each domain."""


def _plain(hint):
    parts = get_args(hint)
    if not parts:
        return {"null" if hint is type(None) else str(getattr(hint, "__name__", hint))}
    return set().union(*(_plain(part) for part in parts if part is not Ellipsis))


def test_what_two_systems_call_by_one_key_is_shared():
    """A key that two systems have and the table does not is one that nobody said the meaning of."""
    having = {}
    for name, each in SYSTEMS.items():
        for one in each.keys:
            having.setdefault(one.name, set()).add(name)
    twice = {key for key, names in having.items() if len(names) > 1}
    alike = {"learner.alpha", "learner.ridge", "learner.clean_share"}
    assert twice - set(SHARED) == alike, "of the same algorithm, LinUCB, and the share of visits that feed the model"
    assert {key: set(names) for key, _, names in shared()} == {key: having[key] for key in SHARED}


def given_in(path):
    """The values of a file by key."""
    return {".".join(key): value for key, value in leaves(yaml.safe_load(path.read_text(encoding="utf-8"))).items()}


JUNK = (math.nan, -1e301, "no such word", [{}], {"no": "key"})
"""What no key takes."""

BOUNDS = {
    "privacy.epsilon": [0, -1, 1e-9, 9.9e-7, 20.1, math.inf],
    "privacy.delta": [0, 1, -1e-6, "small"],
    "privacy.units_per_person": [0, -1, 1_000_001, 1.5],
    "privacy.epochs": [0, -1, 1001, 1.5],
    "privacy.lifetime.epsilon": [0, -1, 1e-9, math.inf],
    "privacy.lifetime.delta": [0, 1, -1e-6],
    "privacy.lifetime.filter": ["advanced", ""],
    "feedback.attribution_window_seconds": [0, 0.0001, math.inf, 1e300],
    "feedback.early_feedback": [0, 10_000_001, 1.5],
    "feedback.remembered_events": [0, 100_000_001, 1.5],
    "feedback.reward_levels": [0, 257, 1.5],
    "feedback.settle_seconds": [-1, math.inf, 1e300],
    "release.horizon": [0, -1, (1 << 30) + 1, 1.5, "all"],
    "release.window_units": [0, 1.5, -1],
    "release.window_seconds": [0, -5, math.inf, 1e300],
    "release.sampling": [0, -0.5, 1.1],
    "features.dimension": [-1, 1 << 20, 2.5],
    "partitions.learner": [0, 4097, 1.5],
    "learner.clean_share": [0, 1.1],
    "measurement.baseline": [-0.1, 0.51],
    "measurement.own": [-0.1, 0.51],
    "measurement.epsilon": [0, -1, 1e-9, 20.5],
}
"""Values just beyond what a key takes, in every system that has the key."""


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_a_value_that_cannot_be_is_refused_with_its_key_what_it_takes_and_what_came(path):
    given = given_in(path)
    for name in given:
        for value in (*JUNK, *BOUNDS.get(name, ())):
            with pytest.raises(ConfigurationError, match=r": expected .*, got |: there is no such key") as caught:
                parse_config(nested({**given, name: value}, "test"), "shop.yaml")
            key = str(caught.value).removeprefix("shop.yaml: ").partition(":")[0]
            assert name.startswith(key) or key.startswith(name.rpartition(".")[0]), (name, value)


def others(value):
    """Other values of a key, of which a configuration takes some."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [value + 1, value / 2]
    return [value[::-1]] if isinstance(value, list) else ["other", "exact", "learner", "edge", "zcdp", "released"]


UNMOVED = {"system", "privacy.person", "partitions.counter", "partitions.collector"}
"""Words alone, and the one counter."""

TOGETHER = {"release.domains", "release.noise_at", "release.mechanism", "kind"}
"""Keys of which some file has a value that only moves together with others."""


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_every_value_moves_what_digests_are_made_of(path):
    given = given_in(path)
    form, unmoved = canonical_form(parse_config(nested(given, "test")), False), set()
    for name, value in given.items():
        rest, moved = {other: said for other, said in given.items() if other != name}, False
        for changed in (rest, *({**rest, name: other} for other in others(value))):
            try:
                moved = moved or canonical_form(parse_config(nested(changed, "test")), False) != form
            except ConfigurationError:
                continue  # beside the other values this one cannot be
        if not moved:
            unmoved.add(name)
    assert unmoved <= UNMOVED | TOGETHER
    assert canonical_form(parse_config(nested(given, "test")), True) != form, "whether a public dataset is replayed"


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_what_is_written_is_read_back(path):
    config = read_config(path)
    assert parse_config(written(config)) == config


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_every_key_reaches_its_value_from_a_file_an_option_and_the_environment(path, monkeypatch, tmp_path):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = parse_config(values)
    short = tmp_path / "short.yaml"
    given = given_in(path)
    for name, value in given.items():
        if name in ("deployment", "system") or (isinstance(value, list) and isinstance(value[0], dict)):
            continue
        rest = {other: said for other, said in given.items() if other != name}
        assert parse_config(nested({**rest, name: value}, "--set")) == config
        short.write_text(yaml.safe_dump(nested(rest, "test")), encoding="utf-8")
        variable = f"HUSHSTREAM__{name.replace('.', '__').upper()}"
        monkeypatch.setenv(variable, yaml.safe_dump(value, default_flow_style=True).splitlines()[0])
        assert read_config(short) == config, name
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_reference_has_every_key_with_type_default_unit_and_meaning(name):
    listed = settings(kinds()[name])
    assert [one.name for one in listed] == list(dict.fromkeys(one.name for one in SYSTEMS[name].keys))
    for one in listed:
        assert one.type
        assert len(one.meaning) > 5
        assert one.unit or one.name.rpartition(".")[2] not in {
            key.rpartition(".")[2] for key in UNITS if "." not in key
        }
    times = [one for one in listed if one.name.endswith("_seconds")]
    assert all(one.unit == "seconds of log time" for one in times)


def test_no_unit_is_of_a_key_that_nobody_has():
    ends = {".".join(one.key[-parts:]) for each in SYSTEMS.values() for one in each.keys for parts in (1, 2)}
    assert set(UNITS) <= ends


def test_a_key_that_moves_no_attribute_is_refused():
    with pytest.raises(ConfigurationError, match="expected attributes to move, got"):
        Language(make_dataclass("Pair", [("a", int), ("b", int)]), {"z": "a.z"})


def test_two_attributes_with_one_key_are_refused():
    with pytest.raises(ConfigurationError, match="expected one attribute of each key, got two of one"):
        Language(make_dataclass("Pair", [("a", int), ("b", int)]), {"a": "b"})
