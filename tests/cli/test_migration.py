"""``hushstream config migrate``: keys get the names that they have now, and the digest stays."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from hushstream.agents.worker.deployment import parse_attributes, prepare, read_config
from hushstream.agents.worker.migration import migrate
from hushstream.engine.configuration import canonical_form
from hushstream.systems.catalogue import kind_of

ROOT = Path(__file__).parents[2]
FORMER = ROOT / "tests" / "language" / "former"


def digest_of(config):
    return hashlib.blake2b(canonical_form(config, False), digest_size=16).hexdigest()


def test_a_prepared_folder_of_an_earlier_release_is_refused_migrated_and_the_same(cli, refused, tmp_path):
    folder = tmp_path / "shop"
    fast = tmp_path / "fast.yaml"
    fast.write_text(migrate(FORMER / "fast.yaml").text, encoding="utf-8")
    config = read_config(fast)
    digest = prepare(folder, config).digest.hex()
    place = folder / "deployment.yaml"
    place.write_bytes((FORMER / "prepared-fast.yaml").read_bytes())
    line = refused("config", "check", folder)
    assert "release.epsilon is now privacy.epsilon" in line
    assert f"`hushstream config migrate {place}`" in line
    checked = cli("config", "migrate", folder, "--check", "--json")
    assert (checked.code, checked.json["renamed"]["lift.holdout"]) == (1, "holdout.share")
    assert "release.epsilon is now privacy.epsilon" in refused("config", "check", folder), "--check writes nothing"
    made = cli("config", "migrate", folder, "--json").json
    assert made["digest_before"] == made["digest_after"] == digest
    assert made["prepared"]
    assert cli("config", "check", folder, "--json").json["digest"] == digest
    again = cli("config", "migrate", folder, "--check")
    assert again.code == 0
    assert "every key has its current name" in again.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deployment: x\nfoo: 1\n", "foo: expected a key or a former key, got another name"),
        ("deployment: x\narms: &n 4\nexpected_slots: *n\ncontext: {dimension: 3}\n", None),
        ("system: colin\ndeployment: x\narms: 2\nfeatures: {dimension: 2}\n"
         "budget: {epsilon: 1, delta: 1.0e-6, lift: 0.5}\n",
         "budget.lift: expected 0.0, as it decides nothing here, got 0.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_migrated_is_refused_and_left_as_it_was(refused, cli, tmp_path, text, said):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    if said is None:
        before = digest_of(parse_attributes(kind_of("p2b"), yaml.safe_load(text)))
        assert cli("config", "migrate", path).code == 0
        assert digest_of(read_config(path)) == before, "an anchor is written out"
    else:
        assert said in refused("config", "migrate", path)
        assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("features", ["{hour: {kind: time_of_day}, country: {kind: category, vocabulary: [de, fr]}}",
                                      "\n  hour: {kind: time_of_day}\n  # of the visit\n  country:\n"
                                      "    kind: category\n    vocabulary: [de, fr]"])  # fmt: skip
def test_features_that_a_deployment_declares_are_no_keys_to_migrate(cli, refused, tmp_path, features):
    present = tmp_path / "present.yaml"
    text = f"deployment: x\nitems: {{capacity: 4}}\nexpected_slots: 900\nfeatures: {features}\n"
    present.write_text(text, encoding="utf-8")
    assert "every key has its current name" in cli("config", "migrate", present).out
    assert present.read_text(encoding="utf-8") == text
    former = tmp_path / "former.yaml"
    former.write_text(text.replace("items: {capacity: 4}", "arms: 4"), encoding="utf-8")
    assert "arms is now items.capacity" in refused("guarantee", former)
    assert cli("config", "migrate", former).code == 0
    assert read_config(former) == read_config(present)
    assert list(yaml.safe_load(former.read_text(encoding="utf-8"))["features"]) == ["hour", "country"]
    assert ("# of the visit" in former.read_text(encoding="utf-8")) == ("# of the visit" in text)
