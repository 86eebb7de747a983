"""Under a seeded key anyone can draw the noise again: each release of each system says so, under a secret one not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from modules import module_at

from hushstream.engine.system import Core
from hushstream.features.schema import declare
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.systems.catalogue import builtin
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.reports import export_model
from hushstream.systems.p2b.slots import pack_null

FIELD = "private_as_stated"
SECRET = Key(b"\x07" * 31 + b"\x03")
LIFT = {"own": 0.5, "epsilon": 20.0, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def small(rigs: Any, related: Any, pdol_rigs: Any) -> SimpleNamespace:
    """The rigs of each system's small deployment."""
    films, shops = (module_at(HERE / name / "rigs.py", f"hushstream_test_{name}_rigs") for name in ("bgt", "pdap"))
    return SimpleNamespace(p2b=rigs, colin=related, pdol=pdol_rigs, bgt=films, pdap=shops)


def _windows(small: Any, key: Key, **release: Any) -> Any:
    rig = small.p2b.ShufflerRig(small.p2b.make_system(release={"window_slots": 4, **release}), key)
    for number in range(4):
        rig.slot(number)
    return rig.fold()


def _system(*, named_items: bool = False) -> P2BSystem:
    config = P2BConfig(
        deployment="small",
        arms=3,
        context=ContextConfig(declared=declare({"device": {"kind": "category", "vocabulary": ["phone", "desk"]}})),
        expected_slots=40,
        release=ReleaseConfig(form="features", sums="fresh", window_slots=4),
        named_items=named_items,
    )
    return P2BSystem.declared(config)


def _declared(small: Any, key: Key, *, named_items: bool = False) -> Any:
    system = _system(named_items=named_items)
    rig = small.p2b.ShufflerRig(system, key)
    period = rig.now_ms // round(system.config.slot.period_seconds * 1000)
    for number in range(4):
        fields = {
            "report_id": number.to_bytes(16, "big"),
            "period": period.to_bytes(8, "little"),
            "config_digest": system.digest,
            "content": pack_null(system.form.layout),
        }
        rig.put("reports", codec.encode("FeatureSlot", fields))
    return rig.fold()


def _lift(small: Any, key: Key) -> Any:
    rig = small.p2b.LearnerRig(small.p2b.make_system(measurement=LIFT), key)
    rig.interact("ann", 1)
    rig.end_phase()
    return rig.fold()


def _counter(small: Any, key: Key) -> Any:
    rig = small.colin.CounterRig(small.colin.releasing(), key)
    rig.rewards(0, small.colin.some_rewards(1, 4))
    rig.end_phase()
    return rig.fold()


def _edge(small: Any, key: Key, **release: Any) -> Any:
    rig = small.colin.RelatedLearnerRig(small.colin.edge_system(**release), key)
    rig.interact("one")
    rig.end_phase()
    rig.fold()
    return rig.seen


def _blocks(small: Any, key: Key, placement: str) -> Any:
    system = small.pdap.make_system(release={"placement": placement})
    rig = small.pdap.BlockCounterRig(system, key, vendor="one" if placement == "home" else "")
    rig.outcomes(0, [(number % 4, number % 3, 1) for number in range(30)])
    rig.end_phase()
    return rig.fold()


def _sums(small: Any, key: Key, **sharing: Any) -> Any:
    return small.pdol.NodeRig(small.pdol.make_system(sharing=sharing), key).play(0, 6)


def _rounds(small: Any, key: Key) -> Any:
    rig = small.bgt.CollectorRig(key=key)
    rig.play(2)
    return rig.seen


PLAYED: dict[str, tuple[str, Callable[[Any, Key], Any]]] = {
    "windows": ("p2b", lambda small, key: _windows(small, key, sums="fresh")),
    "counted windows": ("p2b", lambda small, key: _windows(small, key, sums="counter", windows=8)),
    "tuples": ("p2b", lambda small, key: _windows(small, key, mode="tuples", sampling=0.5, threshold=2)),
    "declared features": ("p2b", _declared),
    "named items": ("p2b", lambda small, key: _declared(small, key, named_items=True)),
    "lift": ("p2b", _lift),
    "counter": ("colin", _counter),
    "counters at the learner": ("colin", _edge),
    "noisy rewards": ("colin", lambda small, key: _edge(small, key, mechanism="noisy-reward")),
    "blocks": ("pdap", lambda small, key: _blocks(small, key, "serving")),
    "blocks of a home": ("pdap", lambda small, key: _blocks(small, key, "home")),
    "sums of gradients": ("pdol", _sums),
    "sums in a tree": ("pdol", lambda small, key: _sums(small, key, counter="negative-digit")),
    "rounds": ("bgt", _rounds),
}


def said(seen: Any) -> Iterator[tuple[str, bool]]:
    """Schema and verdict of every record that left and has one."""
    for step in seen.steps:
        for output in step.releases:
            name, fields = codec.decode(output.value)
            if FIELD in fields:
                yield name, fields[FIELD]


@pytest.mark.parametrize("name", PLAYED)
def test_a_release_and_its_debit_say_whether_the_key_was_seeded(small, name):
    _, play = PLAYED[name]
    for key, stated in ((SECRET, True), (seeded_key(1, "counter"), False)):
        found = list(said(play(small, key)))
        assert {schema == "LedgerEntry" for schema, _ in found} == {True, False}
        assert {verdict for _, verdict in found} == {stated}


@pytest.mark.parametrize("name", PLAYED)
def test_a_release_of_a_tainted_deployment_and_its_debit_say_so_under_a_secret_key(small, name, monkeypatch):
    promised = Core.guarantee
    monkeypatch.setattr(Core, "guarantee", lambda core: promised(core).derived_from(("start",)))
    found = list(said(PLAYED[name][1](small, SECRET)))
    assert {schema == "LedgerEntry" for schema, _ in found} == {True, False}
    assert not any(verdict for _, verdict in found)


@pytest.mark.parametrize("tainted", [True, False])
@pytest.mark.parametrize("form", ["windows", "declared features"])
def test_a_model_and_its_export_say_what_the_deployment_began_with(small, form, tainted, monkeypatch):
    """Even where every record of sums says that it is private."""
    windows = [one.value for one in PLAYED[form][1](small, SECRET).releases("window-sums")]
    if tainted:
        promised = Core.guarantee
        monkeypatch.setattr(Core, "guarantee", lambda core: promised(core).derived_from(("start",)))
    system = (
        _system()
        if form == "declared features"
        else small.p2b.make_system(release={"window_slots": 4, "sums": "fresh"})
    )
    seen = small.p2b.AggregatorRig(system).give(windows)
    assert {fields[FIELD] for fields in seen.journals if FIELD in fields} == {not tainted}
    if form == "declared features":
        exported = export_model(system, [step.journal for step in seen.steps if step.journal is not None])
        assert json.loads(exported.as_json())["about"][FIELD] is (not tainted)


def test_every_system_and_every_record_that_says_so_is_played(small):
    assert {system for system, _ in PLAYED.values()} == {kind.name for kind in builtin()}
    known = {
        path.stem
        for path in (Path(codec.__file__).parent / "avro").glob("*.avsc")
        if FIELD in path.read_text(encoding="utf-8")
    }
    # A version says what the releases say that it is made of (the tests of aggregators).
    releases = {name for name in known if not name.endswith("Model")}
    assert len(releases) >= 8
    assert {schema for _, play in PLAYED.values() for schema, _ in said(play(small, SECRET))} == releases
