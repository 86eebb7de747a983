"""The audits of P2B: every release mode, the lift, and attacks through its roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.coins import bernoulli
from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.replay.audits.roles.rows import attack_row, noise_row
from hushstream.replay.audits.roles.work import SLOTS, Holds, Work, audit_of, has_content
from hushstream.replay.audits.row import HORIZON, Audit, Recipe, Run, made
from hushstream.replay.studies.p2b.audits import attacks, linear, releases, role_noise
from hushstream.replay.studies.p2b.audits.forks import fork_rows
from hushstream.replay.studies.p2b.audits.releases import ARMS, CELLS, p2b
from hushstream.replay.studies.p2b.audits.worked import audit_worked_windows
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import LiftConfig, ReleaseConfig, ShadowConfig
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import PAPER_THRESHOLD
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine

SAMPLING, THRESHOLD = 0.5, 5
WORST_CROWD = 5
"""Other reports in a crowd: with this many, sampled tuples with threshold 5 reveal the most at epsilon ln 2."""
POPULAR = 30
"""Number of other reports with the code of the unique tuple."""

LIFT = LiftConfig(holdout=0.5, epsilon=3.0, decisions_per_user=3, releases=HORIZON)
SHADOW = ShadowConfig(epsilon=3.0, decisions_per_user=3, releases=HORIZON)


def _releases() -> tuple[Recipe, ...]:
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=HORIZON)
    clicks = replace(fresh, levels=1)
    tuples = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=THRESHOLD)
    crowds = ReleaseConfig(mode="tuples", sampling=SAMPLING, threshold=PAPER_THRESHOLD)
    paper = ReleaseConfig(mode="paper", sampling=SAMPLING)
    slot, unique = "a report against null in one slot", "a tuple of one report alone, under a popular code"

    def crowd() -> Audit:
        run = releases.audit_tuples_release(releases.p2b(tuples), WORST_CROWD)
        return Audit("tuples", "release", slot, 5_000, run, factor=10, subjects=(tuples, bernoulli))

    def alone() -> Audit:
        run = releases.audit_unique_tuple(releases.p2b(crowds), POPULAR)
        return Audit("tuples-unique", "release", unique, 1_000, run, subjects=(crowds,))

    def as_in_the_paper() -> Audit:
        run, claim = (
            releases.audit_unique_tuple(releases.p2b(paper), POPULAR),
            tuples_guarantee(PAPER_THRESHOLD, SAMPLING),
        )
        return Audit("paper", "release", unique, 1_000, run, paper_claim=claim.cost, subjects=(paper,))

    return (
        _slot_sums("slot-sums-fresh", fresh, 3_000),
        _slot_sums("slot-sums-sampled", replace(fresh, sampling=SAMPLING), 3_000),
        _slot_sums("slot-sums-counter", running, 2_000),
        _slot_sums("slot-sums-counter-sampled", replace(running, sampling=SAMPLING), 3_000),
        _linear_sums("linear-sums-fresh", fresh, 3_000),
        _linear_sums("linear-sums-sampled", replace(fresh, sampling=SAMPLING), 3_000),
        _linear_sums("linear-sums-counter", running, 2_000),
        *(_linear_sums(f"linear-sums-{name}", clicks, 3_000, forge) for name, forge in linear.FORGED.items()),
        Recipe("tuples", crowd),
        Recipe("tuples-unique", alone),
        Recipe("paper", as_in_the_paper),
        _lift("lift", LIFT, 1_500),
        _shadow("shadow", SHADOW, 1_500),
    )


def _attacks() -> tuple[Recipe, ...]:
    return (
        _attack("shifted-window", "a slot's content against null, all later windows seen", 120, attacks.shifted_window),
        _attack("redrawn-noise", "one window released again and again", 500, attacks.redrawn_noise),
        _attack("two-epsilons", "one cell at two epsilons under one key and nonce", 2_000, attacks.two_epsilons),
        _attack("forked-journal", "one window over two contents under one nonce", 500, attacks.forked_journal),
        _attack("two-owners", "workers on one journal, each with a slot of its own", 1_000, attacks.two_owners),
        _attack("injected-reports", "all but one report of a crowd injected", 1_000, attacks.injected_reports),
        _attack(
            "differenced-metrics", "the public endpoint before and after a click", 150, attacks.differenced_metrics
        ),
        _attack("differenced-windows", "a window's public facts, reports or nulls", 150, attacks.differenced_windows),
    )


def _attack(name: str, about: str, runs: int, run: Callable[[], Run]) -> Recipe:
    return Recipe(name, lambda: Audit(name, "attack", about, runs, run(), factor=2))


def _slot_sums(name: str, release: ReleaseConfig, runs: int) -> Recipe:
    def audit() -> Audit:
        run = releases.audit_slot_sums_release(releases.p2b(release), HORIZON)
        return Audit(name, "release", "a report against null in one slot", runs, run, subjects=(release,))

    return Recipe(name, audit)


def _linear_sums(name: str, release: ReleaseConfig, runs: int, forge: linear.Forge = linear.as_it_is) -> Recipe:
    said = "a report with all units in one cell" if forge is linear.as_it_is else "a forged report"

    def audit() -> Audit:
        chosen = replace(release, form="features")
        run = linear.audit_linear_sums(linear.declared(chosen), HORIZON, forge)
        return Audit(name, "release", f"{said} against null in one slot", runs, run, subjects=(chosen,))

    return Recipe(name, audit)


def _lift(name: str, lift: LiftConfig, runs: int) -> Recipe:
    def audit() -> Audit:
        run = releases.audit_lift(releases.p2b(ReleaseConfig(levels=2), lift))
        about = "all decisions of a user against none, all releases seen"
        return Audit(name, "release", about, runs, run, subjects=(lift,))

    return Recipe(name, audit)


def _shadow(name: str, shadow: ShadowConfig, runs: int) -> Recipe:
    def audit() -> Audit:
        run = releases.audit_shadow(releases.p2b(ReleaseConfig(levels=2), shadow=shadow))
        about = "all decisions of a user against none, all releases seen"
        return Audit(name, "release", about, runs, run, subjects=(shadow,))

    return Recipe(name, audit)


def rows() -> tuple[Recipe, ...]:
    """Every audit of P2B."""
    return (*_releases(), *role_rows(), *_attacks(), *map(made, map(audit_of, works())))


LIFT_OF_ROLES = replace(LIFT, releases=4)


def role_rows() -> tuple[Recipe, ...]:
    """The audits of what P2B's roles publish for known inputs, while they are stopped and restarted."""
    fresh, running = ReleaseConfig(levels=2, sums="fresh"), ReleaseConfig(sums="counter", windows=32)
    slot = "a report against null, through a shuffler that restarts"
    return (
        noise_row("windows-each-cell", "cells, sums, windows, partitions", role_noise.fresh_windows),
        noise_row("counted-windows-each-cell", "cells, sums, partitions", role_noise.counted_cells),
        noise_row("counted-windows-each-draw", "draws of 63 windows, sums", role_noise.counted_windows),
        noise_row("lift-each-sum", "sums, draws, partitions", partial(role_noise.lift_counts, LIFT_OF_ROLES, 2)),
        attack_row("windows-through-the-role", slot, 3_000, partial(audit_worked_windows, fresh, 1)),
        attack_row(
            "counted-windows-through-the-role", slot, 2_000, partial(audit_worked_windows, running, 32), factor=1
        ),
        *fork_rows(LIFT_OF_ROLES),
    )


# Compares the shuffler's work on a window of null slots with its work on reports, for every form of release.

FORMS = {
    "fresh": ReleaseConfig(),
    "sampled": ReleaseConfig(sampling=0.5),
    "counter": ReleaseConfig(sums="counter"),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5),
    "paper": ReleaseConfig(mode="paper", sampling=0.5),
}


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one window with ``slots`` slots, for each form."""
    return tuple(_work(form, p2b(replace(release, window_slots=slots))) for form, release in FORMS.items())


def _work(form: str, system: P2BSystem) -> Work:
    make = partial(ShufflerMachine, system, 0, seeded_key(0, "shuffler"))
    about = "a window of nulls against one of reports"
    return Work(f"time-of-windows-{form}", ("p2b", "shuffler"), about, make, (), partial(_window, system))


def _window(system: P2BSystem, holds: Holds) -> Sequence[bytes]:
    values = []
    for place in range(system.config.release.window_slots):
        report = Report(place * 7 % CELLS, place * 5 % ARMS, place % 2) if has_content(holds, place) else None
        fields = {
            "report_id": place.to_bytes(16, "big"),
            "period": (0).to_bytes(8, "little"),
            "config_digest": system.digest,
            "content": pack(report),
        }
        values.append(codec.encode("SlotReport", fields))
    return values
