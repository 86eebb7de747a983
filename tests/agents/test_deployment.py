"""A deployment's folder: YAML and environment are strict, and what does not fit says what was expected."""

import json

import pytest
import yaml

from hushstream.agents.worker.deployment import (
    CONFIGURATION,
    KeySource,
    load,
    parse_config,
    prepare,
    read_config,
)
from hushstream.engine.values import ConfigurationError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.prepared import ENCODER

PLAIN = {"deployment": "shop", "items": {"capacity": 5}, "features": {"dimension": 4}, "expected_slots": 40}


@pytest.fixture
def written(tmp_path):
    def write(values, name=CONFIGURATION, head=b""):
        path = tmp_path / name
        text = values if isinstance(values, str) else yaml.safe_dump(values)
        path.write_bytes(head + text.encode())
        return path

    return write


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("HUSHSTREAM__")]:
        monkeypatch.delenv(name)


def test_what_preparation_writes_is_read_back(written, tmp_path):
    config = read_config(written(PLAIN))
    prepare(tmp_path / "made", config)
    assert read_config(tmp_path / "made" / "deployment.yaml") == config


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("HUSHSTREAM__PRIVACY__EPSILONN", "1", "privacy.epsilonn"),
        ("HUSHSTREAM__ITEMS__CAPACITY__NUMBER", "1", "HUSHSTREAM__ITEMS__CAPACITY__NUMBER"),
        ("HUSHSTREAM__PRIVACY__EPSILON", "[1", "HUSHSTREAM__PRIVACY__EPSILON"),
        ("HUSHSTREAM__PRIVACY__EPSILON", "much", "privacy.epsilon"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(written, monkeypatch, name, value, named):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=named):
        read_config(written({**PLAIN, "privacy": {"epsilon": 1.0}}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected the fitted encoder, got none"),
        ("{", "expected the fitted encoder as JSON"),
        ("[]", "expected centroids as whole numbers"),
        ('{"digits": 1}', "expected centroids as whole numbers"),
        ('{"digits": 1, "centroids": [[1, 2], [3]]}', "expected centroids as whole numbers"),
        ('{"digits": 1, "centroids": [[0.5, 0.5, 0, 0]]}', "expected centroids as whole numbers"),
        ('{"digits": 1, "centroids": [1, 2]}', r"shape \(k, d\)"),
        (
            '{"digits": 1, "centroids": [[1, 2, 3, 4]]}',
            r"shape \(4, 4\), got \(1, 4\): the configuration of a deployment is frozen",
        ),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(written, tmp_path, content, message):
    written({**PLAIN, "encoder": {"codes": 4}})
    if content is not None:
        (tmp_path / ENCODER).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path)


def test_an_encoder_fitted_for_other_digits_is_refused(rigs, written, tmp_path):
    written({**PLAIN, "encoder": {"codes": 4}, "features": {"dimension": 4, "digits": 2}})
    (tmp_path / ENCODER).write_text(json.dumps({"digits": 1, "centroids": rigs.lattice().tolist()}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="expected centroids fitted for 2 digits, got 1"):
        load(tmp_path)


def test_without_a_source_no_key_is_made_up(tmp_path):
    with pytest.raises(HushstreamError, match="expected a key folder"):
        KeySource().key("edge")
    with pytest.raises(HushstreamError, match="expected a file, got none"):
        KeySource(folder=tmp_path).key("edge")
    assert KeySource(seed=1).key("edge") != KeySource(seed=1).key("shuffler")
    assert KeySource(seed=1).key("edge").reproducible


def test_a_preparation_that_is_refused_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "shop"
    related = parse_config(
        {"system": "colin", "deployment": "club", "items": {"capacity": 3}, "features": {"dimension": 2}}
    )
    wrong = {"graph": ("edges.csv", "ann,bob,heavy\n")}
    with pytest.raises(HushstreamError, match="expected a number for the weight"):
        prepare(folder, related, wrong)
    assert not folder.exists()
    with pytest.raises(ConfigurationError, match="--graph"):
        prepare(folder, parse_config(PLAIN), wrong)
    assert not folder.exists()
    assert prepare(folder, parse_config(PLAIN)).digest == load(folder).digest, "its name is free"
