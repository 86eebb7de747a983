"""A deployment's folder: YAML and environment are strict, and what does not fit says what was expected."""

from __future__ import annotations

import json

import pytest
import yaml

from hushstream.agents.security import read_security
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
from hushstream.systems.p2b.prepared.artefacts import ENCODER

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
    ("values", "named"),
    [
        ({**PLAIN, "armz": 5}, "armz"),
        ({**PLAIN, "privacy": {"epsilonn": 1}}, "privacy.epsilonn"),
        ({**PLAIN, "slot": {"settle": 1}}, "slot.settle"),
        ({**PLAIN, "features": {"dimension": 4, "digit": 1}}, "features.digit"),
    ],
)
def test_an_unknown_key_is_refused_by_name(written, values, named):
    with pytest.raises(ConfigurationError, match=named):
        read_config(written(values))


def test_an_impossible_value_is_refused_with_the_file_and_the_field(written):
    path = written({**PLAIN, "privacy": {"epsilon": -1}})
    with pytest.raises(
        ConfigurationError, match=r"privacy\.epsilon: expected a finite number above 0, got -1"
    ) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_a_faulty_value_that_its_section_needs_is_said_once(written):
    features = {
        "country": {"kind": "category", "vocabulary": ["de", "de"]},
        "age": {"kind": "number", "range": [96, 16]},
        "good": {"kind": "boolean"},
    }
    with pytest.raises(ConfigurationError) as caught:
        read_config(written({**PLAIN, "features": features, "feedback": {"click_rate": 2}}))
    said = str(caught.value).splitlines()
    assert len(said) == 3
    for words in ("country.vocabulary: entry 2", "age.range: expected the low end", "click_rate"):
        assert sum(words in line for line in said) == 1


def test_a_missing_key_is_named(written):
    with pytest.raises(ConfigurationError, match=r"items\.capacity"):
        read_config(written({key: value for key, value in PLAIN.items() if key != "items"}))


def test_a_byte_order_mark_is_no_reason_to_fail(written):
    assert read_config(written(PLAIN, head=b"\xef\xbb\xbf")).arms == 5


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b\n", "just text", "", "a: !!python/object:os.system {}"])
def test_what_is_no_mapping_in_yaml_is_refused(written, text):
    with pytest.raises(ConfigurationError, match="expected"):
        read_config(written(text))


def test_bytes_that_are_no_text_and_missing_files_are_refused(tmp_path):
    (tmp_path / CONFIGURATION).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="expected readable UTF-8"):
        read_config(tmp_path / CONFIGURATION)
    with pytest.raises(ConfigurationError, match="expected a configuration file, got none"):
        read_config(tmp_path / "none.yaml")


def test_the_environment_overrides_single_values(written, monkeypatch):
    monkeypatch.setenv("HUSHSTREAM__PRIVACY__EPSILON", "0.25")
    monkeypatch.setenv("HUSHSTREAM__PRIVACY__UNITS_PER_PERSON", "3")
    monkeypatch.setenv("HUSHSTREAM__RELEASE__WINDOW_SECONDS", "null")
    config = read_config(
        written({**PLAIN, "privacy": {"epsilon": 1.0}, "release": {"window_units": 7, "window_seconds": 5}})
    )
    assert (config.release.epsilon, config.release.window_slots, config.slot.lifetime_slots) == (0.25, 7, 3)
    assert config.release.window_seconds is None


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


def test_a_prepared_folder_keeps_its_encoder_and_digest(rigs, tmp_path):
    config = parse_config({**PLAIN, "encoder": {"codes": 4}})
    first = prepare(tmp_path, config)
    assert prepare(tmp_path, config).digest == load(tmp_path).digest == first.digest
    with pytest.raises(ConfigurationError, match="configuration of a deployment is frozen"):
        prepare(tmp_path, parse_config({**PLAIN, "encoder": {"codes": 5}}))


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


def test_a_password_comes_from_a_file_and_is_never_shown(written, tmp_path):
    (tmp_path / "secret").write_text("canary-password\n", encoding="utf-8")
    secure = {"protocol": "SASL_SSL", "username": "shop", "password_file": str(tmp_path / "secret")}
    security = read_security(written(secure, "security.yaml"))
    assert "canary-password" not in repr(security) + str(security)
    assert security.password is not None
    assert security.password.get_secret_value() == "canary-password"


def test_a_missing_password_file_is_named_and_no_value_repeated(written, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for wrong in (str(tmp_path / "none"), str(tmp_path / "binary"), str(tmp_path), 3):
        with pytest.raises(ConfigurationError, match="password_file: expected a readable file"):
            read_security(written({"password_file": wrong}, "security.yaml"))
    path = written({"password": "canary-password", "passwort": "canary-password"}, "security.yaml")
    with pytest.raises(ConfigurationError, match="passwort") as caught:
        read_security(path)
    assert "canary" not in str(caught.value)


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
