"""Inputs of preparation that are not private as stated: one rule for the inputs of all systems."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker import deployment
from hushstream.agents.worker.deployment import KeySource, artefacts_of, load, parse_config, prepare
from hushstream.engine.declare.artefacts import is_tainted
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.ops.statement import verdict
from hushstream.privacy.amounts import Cost
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.succession import Predecessor

MARK = "# NOT PRIVATE AS STATED\n"
FEATURES = {"age": {"kind": "number", "range": [0, 100]}}
PAID = {"epsilon_micro": 1_000_000, "delta_units": "0"}


def start(private: bool = False) -> str:
    """An exported model of the features, as `hushstream model export` writes it."""
    schema = declare(FEATURES)
    about = {"system": "p2b", "deployment": "first", "config_digest": "00", "version": 1, "slots": 9.0}
    about |= {"private_as_stated": private, "paid": {"which": PAID, "zero_out": PAID}, "reward_variance": 0.1}
    arrays = (np.zeros((2, schema.cells + 1)), np.ones((2, schema.cells + 1)))
    return ExportedModel(about, ("0", "1"), (), schema, *arrays).as_json().decode()


def predecessor(private: bool = False) -> str:
    """What a generation of the same name left."""
    life, none = Prices(Cost(9_000_000), Cost(9_000_000)), Prices(Cost(0), Cost(0))
    left = Predecessor("second", 1, "00", "00", "00", "00", life, (none,), none, bytes(8), private)
    return json.dumps(left.plain)


WRITTEN = {"start": start, "predecessor": predecessor}
ITEMS = {"items": {"capacity": 2}}
INPUTS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, str]]] = {
    ("p2b", "start"): ({**ITEMS, "features": FEATURES, "expected_slots": 1000}, {"start": start()}),
    ("p2b", "predecessor"): ({**ITEMS, "features": FEATURES, "expected_slots": 1000}, {"predecessor": predecessor()}),
    ("bgt", "features"): ({**ITEMS, "features": {"dimension": 1}}, {"features": MARK + "0,.5\n1,.2\n"}),
    ("colin", "graph"): ({**ITEMS, "features": {"dimension": 2}}, {"graph": MARK + "a,b\n"}),
    ("colin", "users"): ({**ITEMS, "features": {"dimension": 2}}, {"graph": "a,b\n", "users": MARK + "a\nb\nc\n"}),
}


def test_every_input_of_the_catalogue_is_tried():
    assert set(INPUTS) == {(kind.name, one.name) for kind in kinds().values() for one in kind.inputs}


@pytest.mark.parametrize(("system", "name"), INPUTS)
def test_what_is_derived_from_an_input_that_is_not_private_says_so_everywhere(system, name, tmp_path):
    values, texts = INPUTS[system, name]

    def prepared(place: str, inputs: dict[str, str], **privacy: Any) -> Any:
        config = parse_config({"system": system, "deployment": "second", **values, "privacy": privacy})
        given = {one: (f"{one}.txt", text) for one, text in inputs.items()}
        return prepare(tmp_path / place, config, given, KeySource(seed=1))

    # The word for an unprotected person accepts nothing here.
    for privacy in ({}, {"person": "unprotected"}, {"tainted": ["another"]}):
        with pytest.raises(ConfigurationError, match=rf"privacy: {{tainted: \[{name}\]}}"):
            prepared("refused", texts, **privacy)
    assert not (tmp_path / "refused" / "deployment.yaml").exists()
    made = prepared("named", texts, tainted=[name])
    assert json.loads((tmp_path / "named" / "tainted.json").read_bytes()) == [name]
    for found in (made, load(tmp_path / "named")):
        promise = found.guarantee()
        assert (promise.tainted, promise.private_as_stated) == ((name,), False)
        assert f"in {name} is guaranteed nothing" in promise.sentence()
        assert verdict(found.guarantee()) == f"Not private as stated: it is derived from {name}, which is not private"
        assert not found.core.as_stated(reproducible=False), "releases, models and ledgers carry this"
        assert found.digest == made.digest
    clean = {one: WRITTEN[one](True) if one in WRITTEN else text.removeprefix(MARK) for one, text in texts.items()}
    private = prepared("private", clean)
    assert private.core.as_stated(reproducible=False)
    assert private.digest != made.digest


def test_devices_get_no_agreement_that_a_tainted_input_breaks(tmp_path):
    values, texts = INPUTS["bgt", "features"]
    values = {**values, "system": "bgt", "deployment": "second", "kind": "edge", "privacy": {"tainted": ["features"]}}
    given = {name: (f"{name}.csv", text) for name, text in texts.items()}
    with pytest.raises(ConfigurationError, match="private as stated where learners are devices"):
        prepare(tmp_path / "devices", parse_config(values), given, KeySource(seed=1))


def test_an_agreement_that_states_the_settings_of_tainted_inputs_is_no_wrapper(tmp_path):
    values, _ = INPUTS["bgt", "features"]
    config = parse_config({**values, "features": {"dimension": 0}, "system": "bgt", "deployment": "d", "kind": "edge"})
    made = prepare(tmp_path / "d", config, {}, KeySource(seed=1))
    assert b"tainted" in (tmp_path / "d" / "agreement.json").read_bytes()
    assert (load(tmp_path / "d").digest, load(tmp_path / "d").guarantee().tainted) == (made.digest, ())


def test_a_start_that_a_line_marks_says_so_where_its_file_is_copied_alone(tmp_path):
    """The model itself may say that it is private, whatever is known of it where it was exported."""
    values, _ = INPUTS["p2b", "start"]
    config = parse_config({"system": "p2b", "deployment": "second", **values, "privacy": {"tainted": ["start"]}})
    prepare(tmp_path / "second", config, {"start": ("m.json", MARK + start(private=True))}, KeySource(seed=1))
    (tmp_path / "third").mkdir()
    shutil.copy(tmp_path / "second" / "start.json", tmp_path / "third")
    third = parse_config({"system": "p2b", "deployment": "third", **values})
    with pytest.raises(ConfigurationError, match=r"privacy: {tainted: \[start\]}"):
        prepare(tmp_path / "third", third, {}, KeySource(seed=1))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    [
        start(),
        f'{{"tainted": ["start"], "content": {start(private=True)}}}',
        f'{{"tainted": ["start"], "content": {start(private=True)}, "private_as_stated": true}}',
        f'{{"tainted": [], "content": {start(private=True)}, "private_as_stated": false}}',
        f'{{"t\\u0061inted": "start", "content": {start(private=True)}}}',
    ],
)
def test_a_copied_file_says_so_in_any_encoding_and_wrapper(text, encoding, tmp_path):
    values, _ = INPUTS["p2b", "start"]
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "start.json").write_bytes(text.encode(encoding))
    third = parse_config({"system": "p2b", "deployment": "third", **values})
    with pytest.raises(ConfigurationError, match=r"privacy: {tainted: \[start\]}"):
        prepare(tmp_path / "third", third, {}, KeySource(seed=1))


@pytest.mark.parametrize("listed", ["null", "3", '"start"', '{"start": true}', '{"tainted": [], "content": []}'])
def test_a_damaged_list_of_tainted_inputs_is_no_empty_one(listed, tmp_path):
    values, _ = INPUTS["p2b", "start"]
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "start.json").write_text(start(private=True), encoding="utf-8")
    (tmp_path / "third" / "tainted.json").write_text(listed, encoding="utf-8")
    third = parse_config({"system": "p2b", "deployment": "third", **values})
    with pytest.raises(ConfigurationError):
        prepare(tmp_path / "third", third, {}, KeySource(seed=1))


@pytest.mark.parametrize("mark", [" # Not Private", "#not-private", "\t# NOT_PRIVATE as stated"])
def test_a_mark_counts_in_any_spelling(mark):
    assert is_tainted(f"{mark}\na,b\n")
    assert not is_tainted("# a graph that nobody marked\na,b\n")


@pytest.mark.parametrize("said", ["false", "0", "null", '"no"', '"true"', "[true]"])
@pytest.mark.parametrize("field", ["private_as_stated", r"private\u005fas_stated"])
def test_only_true_says_that_a_file_is_private(field, said):
    assert is_tainted(f'{{"about": {{"{field}":{said}}}}}')
    assert is_tainted(f'\ufeff{{"about": [{{"{field}" : true}}, {{"{field}" : {said}, "{field}": true}}]}}')
    assert not is_tainted(f'{{"about": {{"{field}": true}}}}')


def test_a_start_that_does_not_say_whether_it_is_private_is_refused(tmp_path):
    values, _ = INPUTS["p2b", "start"]
    config = parse_config({"system": "p2b", "deployment": "second", **values})
    without = json.loads(start(private=True))
    del without["about"]["private_as_stated"]
    with pytest.raises(HushstreamError, match="expected its private_as_stated, got none"):
        prepare(tmp_path / "second", config, {"start": ("m.json", json.dumps(without))}, KeySource(seed=1))


def copied(system: str, name: str, tmp_path: Path, *left: str) -> Path:
    """A folder with the prepared files of a tainted deployment alone, but for some."""
    values, texts = INPUTS[system, name]
    config = parse_config({"system": system, "deployment": "second", **values, "privacy": {"tainted": [name]}})
    prepare(tmp_path / "named", config, {one: ("", text) for one, text in texts.items()}, KeySource(seed=1))
    other = tmp_path / "copied"
    other.mkdir()
    for path in (tmp_path / "named").glob("*.json"):
        if path.name not in left:
            (other / path.name).write_bytes(path.read_bytes())
    return other


@pytest.mark.parametrize(("system", "name"), INPUTS)
def test_what_was_prepared_and_is_copied_without_the_list_is_not_private_either(system, name, tmp_path):
    other = copied(system, name, tmp_path, "tainted.json")
    values, texts = INPUTS[system, name]
    config = parse_config({"system": system, "deployment": "third", **values})
    cleaned = {one: ("", text.removeprefix(MARK)) for one, text in texts.items()}
    for given in ({}, cleaned):
        with pytest.raises(ConfigurationError, match=rf"privacy: {{tainted: \[{name}\]}}"):
            prepare(other, config, given, KeySource(seed=1))
    (tmp_path / "named" / "tainted.json").unlink()
    assert load(tmp_path / "named").guarantee().tainted == (name,)
    named = parse_config({"system": system, "deployment": "third", **values, "privacy": {"tainted": [name]}})
    assert prepare(other, named, cleaned, KeySource(seed=1)).guarantee().tainted == (name,)


@pytest.mark.parametrize(("system", "name"), INPUTS)
def test_where_preparation_ended_in_between_no_file_is_without_its_mark(system, name, tmp_path, monkeypatch):
    written: list[str] = []
    real = deployment.write_artefact
    monkeypatch.setattr(
        deployment, "write_artefact", lambda path, content: written.append(path.name) or real(path, content)
    )
    copied(system, name, tmp_path)
    assert written[0] == "tainted.json"
    assert written[-1] == "deployment.yaml"


@pytest.mark.parametrize(
    "mark", ["# not private as stated\n", "# Not  Private\r\n", "\ufeff# NOT PRIVATE\n", "#not private\n"]
)
def test_the_line_that_marks_a_table_may_be_spelled_otherwise_and_is_no_row(mark, tmp_path):
    values, _ = INPUTS["colin", "graph"]

    def prepared(place: str, text: str, **privacy: Any) -> Any:
        config = parse_config({"system": "colin", "deployment": "second", **values, "privacy": privacy})
        return prepare(tmp_path / place, config, {"graph": ("graph.txt", text)}, KeySource(seed=1))

    with pytest.raises(ConfigurationError, match=r"privacy: {tainted: \[graph\]}"):
        prepared("refused", mark + "a,b\n")
    prepared("named", mark + "a,b\n", tainted=["graph"])
    prepared("plain", "a,b\n")
    named, plain = (artefacts_of(tmp_path / place).json("relation.json", "") for place in ("named", "plain"))
    assert named == plain
