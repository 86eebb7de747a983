"""What goes by name: one form for datasets, worlds, logs and experiments, of this package and of others."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hushstream.replay import study
from hushstream.replay.catalogue import WORLDS, find_world, known_worlds, played_by, system_of
from hushstream.replay.datasets.builtin import DATASETS, known_datasets
from hushstream.replay.experiments.catalogue import known_experiments
from hushstream.replay.experiments.findings import EXPERIMENTS
from hushstream.replay.logged.log import LOGS, LogError, known_logs
from hushstream.replay.studies.colin.worlds import CollaborativeWorld, colin
from hushstream.replay.worlds.synthetic import SyntheticWorld, synthetic
from hushstream.replay.worlds.world import WorldError


class _Entry:
    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def load(self) -> object:
        return self.value


@pytest.fixture
def offer(monkeypatch):
    """Have another package offer one thing."""

    def offering(wanted: str, name: str, value: object) -> None:
        found = [_Entry(name, value)]
        monkeypatch.setattr(study, "entry_points", lambda group: found if group == wanted else [])

    return offering


KINDS = [(DATASETS, known_datasets), (WORLDS, known_worlds), (LOGS, known_logs), (EXPERIMENTS, known_experiments)]


@pytest.mark.parametrize(("kind", "known"), KINDS, ids=[kind.what for kind, _ in KINDS])
def test_what_is_offered_twice_or_is_something_else_is_refused_in_the_same_words(offer, kind, known):
    name, mine = next(iter(known().items()))
    offer(kind.group, name, mine)
    assert known()[name] is mine
    offer(kind.group, "other", 7)
    with pytest.raises(kind.error, match=f"entry point other of {kind.group}: expected .*, got int"):
        known()


@pytest.mark.parametrize(("kind", "known", "error"), [(WORLDS, known_worlds, WorldError), (LOGS, known_logs, LogError)])
def test_another_packages_factory_is_found_by_its_entry_point_and_may_not_take_a_name(offer, kind, known, error):
    def made() -> SyntheticWorld:
        return synthetic()

    taken = next(iter(known()))
    offer(kind.group, "made", made)
    assert known()["made"] is made
    offer(kind.group, taken, made)
    with pytest.raises(error, match=f"two packages offer a {kind.what} named"):
        known()


def test_a_world_is_for_the_system_that_the_class_of_its_factory_is_for(offer):
    def related() -> CollaborativeWorld:
        return colin()

    for made, system in ((related, "colin"), (lambda: synthetic(), "p2b")):
        offer(WORLDS.group, "made", made)
        assert (system_of("made"), played_by("made")) == (system, (f"replay {system}",))
    assert system_of("colin") == "colin"
    assert system_of("ml-100k") == "p2b"


OF_USERS_FILES = {"own-ratings", "own-records", "own-vendors"}
"""Worlds that are made of whatever file their user names."""


def test_every_world_and_log_of_this_package_is_a_dataset_of_the_same_name():
    names = {*known_worlds(), *known_logs()}
    assert names - OF_USERS_FILES <= set(known_datasets())
    assert all(played_by(name) for name in names)
    with pytest.raises(WorldError, match=r"unknown world 'nothing'; known: catalogue, colin, .*tmc2007, vendors$"):
        find_world("nothing")


def test_what_comes_with_the_package_is_registered_in_one_place():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not set(project.get("entry-points", {})) & {kind.group for kind, _ in KINDS}
