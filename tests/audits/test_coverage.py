"""Every mechanism, counter and release that there is or that a configuration accepts has a row of the catalogue.

The lists are taken from the code: a new one without a row fails here.
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass
from itertools import product
from typing import get_args, get_type_hints

import hushstream.privacy
from every_audit import all_audits
from hushstream.counting import Plan
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.mechanisms.rewards import LocalReward, RewardLaw
from hushstream.replay.studies.colin.play import CALIBRATIONS, Exposure
from hushstream.replay.studies.p2b.audits import p2b
from hushstream.systems.catalogue import kinds
from hushstream.systems.colin.configuration import ContinualConfig, Mechanism, NoiseAt, NoiseLaw, local_reward_of
from hushstream.systems.p2b.configuration import ReleaseConfig, ReleaseMode, SumsRelease


def every_subject():
    return [subject for audit in all_audits() for subject in audit.subjects]


def subjects(kind):
    return [subject for subject in every_subject() if isinstance(subject, kind)]


def draws(function):
    return any(
        "KeyedStream" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()
    )


def drawing_modules():
    """Modules of `hushstream.privacy` with something public that takes a keyed stream, and so draws from it."""
    for found in pkgutil.walk_packages(hushstream.privacy.__path__, "hushstream.privacy."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            functions = vars(value).values() if inspect.isclass(value) else [value]
            if any(inspect.isfunction(one) and draws(one) for one in functions):
                yield module.__name__


def accepted(kind, **choices):
    """All values of a configuration's section that it does not refuse."""
    for chosen in product(*choices.values()):
        try:
            yield kind(**dict(zip(choices, chosen, strict=True)))
        except ConfigurationError:
            continue


def sections(kind):
    """A configuration's class, and those of all its sections."""
    yield kind
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part):
                yield from sections(part)


def test_names_are_unique():
    names = [audit.name for audit in all_audits()]
    assert len(set(names)) == len(names)


def test_every_module_that_draws_has_a_row():
    found = set(drawing_modules())
    assert {
        "hushstream.privacy.mechanisms.noise",
        "hushstream.privacy.mechanisms.rewards",
    } <= found
    audited = {getattr(subject, "__module__", None) for subject in every_subject()}
    assert found <= audited | {type(subject).__module__ for subject in every_subject()}


def test_every_law_of_a_local_reward_has_a_row():
    assert {local.law for local in subjects(LocalReward)} == set(get_args(RewardLaw))


def test_every_counter_has_a_row():
    def concrete(kind):
        own = (
            {kind.__qualname__} if not inspect.isabstract(kind) and kind.__module__.startswith("hushstream.") else set()
        )
        return own.union(*map(concrete, kind.__subclasses__()))

    assert {type(plan).__qualname__ for plan in subjects(Plan)} == concrete(Plan)


def test_every_release_mode_of_the_shuffler_has_a_row():
    """Fresh noise and a counter, with and without secret sampling; `auto` is one of these."""

    def released(release):
        return release.mode, p2b(release).window_tree is not None, release.sampling < 1

    modes, sums = get_args(ReleaseMode), get_args(SumsRelease)
    found = set(map(released, accepted(ReleaseConfig, mode=modes, sums=sums, sampling=(1.0, 0.5))))
    assert len(found) == 6
    rows = list(subjects(ReleaseConfig))
    assert found == set(map(released, (one for one in rows if one.form != "features")))
    assert {one.sums for one in rows if one.form == "features"} == {"fresh", "counter"}


def test_every_collaborative_release_has_a_row():
    """All but exact sums, which guarantee nothing; auto is one of these."""

    def released(release):
        law = local_reward_of(release).law if release.mechanism == "noisy-reward" else release.noise
        return release.noise_at, release.mechanism, law

    choices = {"noise_at": get_args(NoiseAt), "mechanism": get_args(Mechanism), "noise": get_args(NoiseLaw)}
    settings = accepted(ContinualConfig, **choices, epsilon=(1.0, 4.0))
    found = {released(release) for release in settings if release.mechanism not in ("auto", "exact")}
    assert len(found) == 24
    assert found == set(map(released, subjects(ContinualConfig)))


def test_every_section_with_an_epsilon_of_its_own_has_a_row():
    """Budgets limit what others spend: they release nothing."""
    priced = {
        section
        for kind in kinds().values()
        for section in sections(kind.config)
        if any(field.name == "epsilon" for field in fields(section)) and section.__name__ != "BudgetConfig"
    }
    assert len(priced) == 7
    assert priced <= {type(subject) for subject in every_subject()}


def test_every_calibration_of_a_paper_that_is_not_private_as_stated_has_a_row_that_must_break_it():
    rows = {audit.name for audit in all_audits() if audit.paper_claim is not None}
    assert rows == {"paper", "bgt-paper", "colin-paper", "pdap-paper", "pdol-paper"}
    assert [one.key for one in CALIBRATIONS if not one.as_stated] == ["paper"]
    assert len(subjects(Exposure)) == 1
