"""PDOL's experiments run quickly, write their files, and say what is not private."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.catalogue import find_experiment, played, write
from hushstream.replay.studies.pdol import audits
from hushstream.systems.pdol.algorithm.counters import NodeRelease, NodeState
from hushstream.systems.pdol.algorithm.gossip import MIXING_BITS, GossipNode
from hushstream.systems.pdol.algorithm.rows import Rows, predictions, scores
from hushstream.systems.pdol.configuration import UNIT

PNG = b"\x89PNG\r\n\x1a\n"
FIGURES = ("epsilon", "topology", "sparsity", "nodes")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "system", "value", "pictures"),
    [
        ("pdol-figures", None, "accuracy", [f"pdol-figures-{one}.png" for one in FIGURES]),
        ("joining", "pdol", "joined", ["joining.png"]),
    ],
)
@pytest.mark.timeout(600)
def test_a_quick_run_writes_rows_and_pictures(name, system, value, pictures, tmp_path):
    experiment = find_experiment(name)
    files = write(experiment, played(experiment, quick=True, system=system), tmp_path)
    rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
    assert rows
    assert all(0 <= float(row[value]) <= 1 for row in rows)
    assert all((tmp_path / picture).read_bytes().startswith(PNG) for picture in pictures)
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["description"]["name"] == name
    # Rows, description and page; figures have a table of their targets, too.
    assert len(files) == (4 if name == "pdol-figures" else 3) + len(pictures)
    if name == "pdol-figures":
        assert {row["part"] for row in rows} == set(FIGURES)
        noised = [row for row in rows if row["epsilon_asked"] != "none"]
        assert noised
        assert {row["marks"] for row in noised} == {NOT_PRIVATE}
        assert all(float(row["epsilon"]) > float(row["epsilon_asked"]) for row in noised)
    else:
        # The lead that the forecast takes is that of late records, as `plan --lead` and a replay have it.
        (noised,) = (row for row in rows if row["lead"])
        late, whole = (float(noised[f"without_privacy{end}"]) - float(noised[f"alone{end}"]) for end in ("_last", ""))
        assert float(noised["lead"]) == pytest.approx(late)
        assert late != pytest.approx(whole)


# Leaks of local data that no line of a node makes by itself: an attack finds each.

RUNS = 1_500
FALSE_ALARM = 1e-6


class Remembering(NodeState):
    """Knows its own sum without noise, as a model: 1.5 where it is not zero."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.exact = np.zeros(self._leaf.shape, dtype=np.int64)

    def local(self) -> np.ndarray:
        return (-np.sign(self.exact) * (3 * UNIT // 2)).astype(np.int32)

    def release(self) -> NodeRelease:
        self.exact += self._leaf
        return super().release()


class GradientAtLocalModel(Remembering):
    def fold(self, rows: Rows, model: np.ndarray) -> np.ndarray:
        return super().fold(rows, self.local() if self.leaves else model)


class MixesOwnExactParameters(Remembering):
    def fold(self, rows: Rows, model: np.ndarray) -> np.ndarray:
        return super().fold(rows, ((model.astype(np.int64) + self.local()) // 2).astype(np.int32))


def from_exact_parameters(node: NodeState, rows: Rows, model: np.ndarray) -> np.ndarray:
    assert isinstance(node, Remembering)
    return predictions(scores(rows, node.local()))


MUTANTS = {
    "prediction from parameters without noise": {"NodeState": Remembering, "predicted": from_exact_parameters},
    "mixing own parameters without noise": {"NodeState": MixesOwnExactParameters},
    "gradient at a model that holds local data": {"NodeState": GradientAtLocalModel},
}


@pytest.mark.parametrize("mutant", list(MUTANTS))
def test_every_mutant_fails(mutant, monkeypatch):
    for name, broken in MUTANTS[mutant].items():
        monkeypatch.setattr(audits, name, broken)
    assert not audits.audit_domain("blt")(RUNS, FALSE_ALARM).passed


class MixesOwnBeforeNoise(GossipNode):
    """a_ii theta_i in place of a_ii theta~_i: epsilon / (1 - a_ii), here twice epsilon."""

    def mixed(self) -> np.ndarray:
        place = self._place[self.node]
        apart = (self._weights[place] * (self._own - self._known[place])) >> MIXING_BITS
        return super().mixed() + apart


@pytest.mark.slow_statistics
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mixing_own_parameters_from_before_the_noise_fails(monkeypatch):
    """One noise tells at most 1, so who is surer than that needs the later sums. Bound 1.30 expected, deviation .06."""
    monkeypatch.setattr(audits, "GossipNode", MixesOwnBeforeNoise)
    assert not audits.audit_gossip("sent", sure=1.2)(10_000, FALSE_ALARM).passed
