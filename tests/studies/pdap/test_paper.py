"""The paper's forms: what they do by phase, what they promise, and what can be said of their table."""

import pytest

from hushstream.privacy.amounts import DELTA_ONE
from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.studies.pdap.experiments import PaperRun, PaperTask, paper_guarantee, play_paper
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.systems.pdap.cells import ROOT

ARMS, VENDORS = 5, 2


def run(form="DAP", epsilon=1.0, training=2_000):
    return PaperRun(PaperTask(form, epsilon, training, (500,), 0, ARMS, VENDORS), vendors(vendors=VENDORS, arms=ARMS))


def test_what_the_paper_claims_is_marked_and_the_true_figure_stands_beside_it():
    found = paper_guarantee("P-DAP", 0.1)
    assert found.marks == (NOT_PRIVATE,)
    assert found.delta_units == DELTA_ONE
    assert found.claimed.epsilon_micro == 100_000
    assert "nothing is guaranteed" in found.warning


def test_one_click_decides_which_item_a_neighbours_context_is_shown():
    shown = []
    for click in (0, 1):
        one = run("P-DAP", epsilon=0.01)
        cell = one.cell(1, [ROOT])
        cell.shown += 10
        cell.clicks += 5
        cell.clicks[3] += click
        one.forward(1, [ROOT], [0.5, 0.5])
        shown.append(int((cell.shown - 10).argmax()))
    assert shown == [0, 3]


def test_every_own_item_is_shown_before_a_neighbour_is_asked():
    one, world = run(training=40), vendors(vendors=VENDORS, arms=ARMS)
    import numpy as np

    arrivals = world.arrivals(ARMS, np.random.default_rng(0))
    home_only = type(arrivals)(arrivals.contexts, np.zeros(ARMS, dtype=np.int64), arrivals.users)
    one.serve(home_only)
    assert one.cell(0, [ROOT]).shown.tolist() == [1] * ARMS
    assert one.cell(1, [ROOT]).shown.sum() == 0


@pytest.mark.parametrize("form", ["random", "DUP", "CAP", "neighbour-only", "DAP", "P-DAP", "GP-DAP"])
def test_every_form_plays_and_is_a_function_of_its_task(form):
    task = PaperTask(form, 0.1, 1_500, (200, 500), 1, 20, 4)
    first = play_paper(task)
    assert first == play_paper(task)
    assert sorted(first) == [200, 500]
    assert all(0.05 < value < 1 for value in first.values())


@pytest.mark.slow_statistics
def test_sharing_beats_a_lone_vendor_and_noise_that_never_ends_exploring_costs():
    # Seeds are fixed: so is the outcome.
    def after(form):
        return play_paper(PaperTask(form, 0.1, 30_000, (3_000,), 0, 20, 4))[3_000]

    assert after("DAP") > after("CAP") + 0.02
    assert after("DAP") > after("P-DAP") + 0.02
    assert after("CAP") > after("random") + 0.1
