"""One configuration language: a key means the same in every system, and no key is part of a digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import get_args

import pytest
import yaml

from hushstream.agents.worker.deployment import parse_attributes, parse_config, read_config, written
from hushstream.agents.worker.migration import migrate
from hushstream.cli.configure.config_options import settings, shared
from hushstream.engine import language
from hushstream.engine.configuration import canonical_form, is_later
from hushstream.engine.language import SHARED, UNITS, Language
from hushstream.engine.values import ConfigurationError
from hushstream.replay.configurations import nested
from hushstream.systems.catalogue import kind_of, kinds

HERE = Path(__file__).parent
FORMER = sorted((HERE / "former").glob("*.yaml"))
DIGESTS = json.loads((HERE / "digests.json").read_text(encoding="utf-8"))
EXAMPLES = HERE.parents[1] / "deploy" / "examples"
SYSTEMS = {name: kind.language for name, kind in kinds().items()}


def digest_of(config):
    return hashlib.blake2b(canonical_form(config, False), digest_size=16).hexdigest()


def renamed(name):
    """Every former key of a system that a value stood under, with what it is called now."""
    each = SYSTEMS[name]
    return [(old, new) for old, new in each.former.items() if not each.holds_keys(old)]


OLD = [(name, ".".join(old), new and ".".join(new)) for name in SYSTEMS for old, new in renamed(name)]


@pytest.mark.parametrize("path", FORMER, ids=lambda path: path.stem)
def test_a_migrated_file_has_the_digest_that_was_recorded_before_its_keys_were_renamed(path, tmp_path):
    found = migrate(path)
    assert found.before.hex() == found.after.hex() == DIGESTS[path.stem]
    made = tmp_path / path.name
    made.write_text(found.text, encoding="utf-8")
    assert digest_of(read_config(made)) == DIGESTS[path.stem]


@pytest.mark.parametrize("path", FORMER, ids=lambda path: path.stem)
def test_migration_is_idempotent_and_loses_no_comment(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    made = tmp_path / path.name
    made.write_text(migrate(path).text, encoding="utf-8")
    again = migrate(made)
    assert (again.text, again.renamed) == (made.read_text(encoding="utf-8"), {})
    for comment in (line.partition("#")[2] for line in text.splitlines()):
        assert comment.strip() in again.text


def test_every_example_has_its_recorded_digest(tmp_path):
    """Two of them declare features by name since; what they were is among the former files. Two have items by name."""
    found = {path.stem: digest_of(read_config(path)) for path in EXAMPLES.glob("*.yaml")}
    by_name = {"fast": "fast-by-name", "shop": "shop-of-named-items", "mall": "mall-of-named-items"}
    assert found == {name: DIGESTS[by_name.get(name, name)] for name in found}
    assert len(found) == 6
    numbered = tmp_path / "shop.yaml"
    numbered.write_text((EXAMPLES / "shop.yaml").read_text(encoding="utf-8").replace(", named: true", ""), "utf-8")
    assert digest_of(read_config(numbered)) == DIGESTS["shop-by-name"]


def test_every_system_has_a_recorded_configuration_with_every_former_key():
    """A key that no recorded file has could be renamed wrongly, and no digest here would change."""
    for name, each in SYSTEMS.items():
        files = [
            path for path in FORMER if yaml.safe_load(path.read_text(encoding="utf-8")).get("system", "p2b") == name
        ]
        said = {
            tuple("*" if part.isdigit() else part for part in key)
            for path in files
            for key in each.leaves(yaml.safe_load(path.read_text(encoding="utf-8")))
        }
        # What came later, alone or in a section, was never called otherwise.
        later = {one.name for one in fields(kinds()[name].config) if is_later(one)}
        old = [one for one in each.keys if not is_later(one.field) and one.attribute[0] not in later]
        attributes = {one.attribute for one in old if one.form == "value"}
        assert attributes <= said, name


@pytest.mark.parametrize(("name", "old", "new"), OLD, ids=[f"{name}-{old}" for name, old, _ in OLD])
def test_a_former_key_is_refused_with_what_it_is_called_now(name, old, new):
    values = _nested(old.replace("*", "0"))
    with pytest.raises(ConfigurationError) as caught:
        parse_config({"system": name, "deployment": "x", **values})
    lines = str(caught.value).splitlines()
    expected = f"is now {new.replace('*', '0')}" if new else "is no setting any more"
    assert any(line.startswith(f"configuration: {old.replace('*', '0')} {expected}") for line in lines), lines
    assert lines[-1] == "`hushstream config migrate configuration` writes keys as they are called now"


def _nested(key):
    *above, last = key.split(".")
    values = {last: 1}
    for part in reversed(above):
        values = [values] if part == "0" else {part: values}
    return values


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
    assert twice - set(SHARED) == {"learner.alpha", "learner.ridge"}, "of the same algorithm, LinUCB"
    assert {key: set(names) for key, _, names in shared()} == {key: having[key] for key in SHARED}


WHOLE = {path.stem.removeprefix("whole-"): path for path in FORMER if path.stem.startswith("whole-")}


@pytest.mark.parametrize("path", WHOLE.values(), ids=list(WHOLE))
def test_what_is_written_is_read_back(path):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    kind = kind_of(values["system"])
    config = parse_attributes(kind, values)
    assert parse_config(written(config)) == config
    assert digest_of(parse_config(written(config))) == digest_of(config) == DIGESTS[path.stem]


@pytest.mark.parametrize("path", WHOLE.values(), ids=list(WHOLE))
def test_every_key_reaches_its_value_from_a_file_an_option_and_the_environment(path, monkeypatch, tmp_path):
    values = yaml.safe_load(migrate(path).text)
    each = SYSTEMS[values["system"]]
    config = parse_config(values)
    short = tmp_path / "short.yaml"
    for key, value in each.leaves(values).items():
        if key[-1] in ("deployment", "system") or any(part.isdigit() for part in key):
            continue
        name = ".".join(key)
        rest = {one: said for one, said in each.leaves(values).items() if one != key}
        assert parse_config(nested({**_dotted(rest, values), name: value}, "--set")) == config
        short.write_text(yaml.safe_dump(nested(_dotted(rest, values), "test")), encoding="utf-8")
        variable = f"HUSHSTREAM__{'__'.join(key).upper()}"
        monkeypatch.setenv(variable, yaml.safe_dump(value, default_flow_style=True).splitlines()[0])
        assert read_config(short) == config, name
        monkeypatch.delenv(variable)


def _dotted(leaves, values):
    """Values by dotted key; lists of sections whole."""
    plain = {".".join(key): value for key, value in leaves.items() if not any(part.isdigit() for part in key)}
    return {**plain, **({"vendors": values["vendors"]} if "vendors" in values else {})}


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


def test_no_former_key_is_a_key_of_something_else():
    """A file could then say one thing and mean another."""
    for name, each in SYSTEMS.items():
        assert not {one.key for one in each.keys} & set(each.former), name
    pair = make_dataclass("Pair", [("a", int), ("b", int)])
    with pytest.raises(ConfigurationError, match="expected attributes that are no keys"):
        Language(pair, {"a": "b", "b": "c"})
    with pytest.raises(ConfigurationError, match="expected attributes that are no keys"):
        Language(pair, {"z": "a.z"})


def test_a_value_that_decides_nothing_beside_another_form_has_no_key():
    values = yaml.safe_load((HERE / "former" / "whole-gossip.yaml").read_text(encoding="utf-8"))
    values["sharing"]["epsilon"] = 3.0
    config = parse_attributes(kind_of("pdol"), values)
    with pytest.raises(
        ConfigurationError, match=r"sharing\.epsilon: expected 1\.0, as it decides nothing here, got 3\.0"
    ):
        written(config)


def test_comments_stay_with_what_they_are_about(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "# of the shop\ndeployment: x\narms: 4   # hats\ncontext: {dimension: 3}\nexpected_slots: 9\n"
        "# how sums leave\nrelease:\n  epsilon: 0.50   # dear\n  # a day's worth\n  window_slots: 70\n# the end\n",
        encoding="utf-8",
    )
    assert migrate(path).text == (
        "# of the shop\ndeployment: x\nitems: {capacity: 4}  # hats\nfeatures: {dimension: 3}\nexpected_slots: 9\n"
        "# how sums leave\nprivacy: {epsilon: 0.50}  # dear\n# a day's worth\nrelease: {window_units: 70}\n# the end\n"
    )
