"""What a deployment promises and foretells: the published figures, held to an accountant of others."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import combinations

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from pydantic import TypeAdapter, ValidationError

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.promises.page import page_text
from hushstream.privacy.promises.promise import NOT_PRIVATE, Promises
from hushstream.systems.pdol.advice import advise
from hushstream.systems.pdol.configuration import (
    GossipConfig,
    ModelConfig,
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
    pdol_digest,
)
from hushstream.systems.pdol.errors import BadGraph, PdolError
from hushstream.systems.pdol.guarantee import epoch_guarantee, gossip_epsilon, person_cost
from hushstream.systems.pdol.system import KIND

NAN, INF = float("nan"), float("inf")


def tmc(epsilon: float = 1.0, records: int = 1, **options) -> PdolConfig:
    return PdolConfig("x", 64, RecordConfig(501, records), SharingConfig("blt", epsilon, 1e-6, 14, 32), **options)


@pytest.mark.parametrize(("records", "epsilon"), [(1, 1.0), (2, 2.11), (4, 4.55), (10, 13.26)])
def test_records_of_one_person_cost_the_square_of_their_number(records: int, epsilon: float) -> None:
    found = person_cost(tmc(), [records]).epsilon_micro / 1e6
    assert found == pytest.approx(epsilon, abs=0.005)
    assert found == pytest.approx(epoch_guarantee(tmc(records=records)).lifetime.cost.epsilon_micro / 1e6)


def test_an_accountant_of_others_finds_no_more() -> None:
    """dp-accounting's Gaussian mechanism with the noise of one counter, composed for the records of a person."""
    for epsilon, records in ((1.0, [1]), (8.0, [1]), (1.0, [2, 1, 3]), (0.5, [5])):
        config = tmc(epsilon)
        rho = epoch_guarantee(config).rho_micro / 1e6
        orders = [1 + step / 10 for step in range(1, 2000)] + list(range(210, 2000, 10))
        accountant = RdpAccountant(orders)
        for count in records:
            accountant.compose(GaussianDpEvent(1 / (count * math.sqrt(2 * rho))))
        theirs, ours = accountant.get_epsilon(1e-6), person_cost(config, records).epsilon_micro / 1e6
        # Ours takes whole orders alone; theirs all of them.
        assert theirs <= ours + 1e-9
        assert ours <= 1.03 * theirs


def test_a_record_against_another_costs_four_times_rho() -> None:
    promise = epoch_guarantee(tmc())
    assert promise.cost.epsilon_micro <= 1_000_000
    assert promise.replace_one.epsilon_micro / 1e6 == pytest.approx(2.112, abs=1e-3)
    assert promise.marks == ()


def test_who_predicts_at_nodes_is_told_whom_it_protects() -> None:
    place = PredictionConfig("node")
    assert any("outsiders alone" in fact for fact in epoch_guarantee(tmc(prediction=place)).not_protected)
    assert not any("outsiders alone" in fact for fact in epoch_guarantee(tmc()).not_protected)


def test_sums_without_noise_promise_nothing() -> None:
    config = PdolConfig("x", 2, RecordConfig(5), SharingConfig("exact"))
    promise = epoch_guarantee(config)
    assert promise.cost.delta_units == 1 << 80
    assert not promise.private_as_stated
    assert promise.unnoised == ("releases", "models")
    with pytest.raises(PdolError, match="sound form with noise"):
        person_cost(config, [1])


def gossip(at: str, **options) -> PdolConfig:
    form = GossipConfig(epsilon=1.0, rounds=200, gradient_at=at)  # type: ignore[arg-type]
    return PdolConfig("x", 64, RecordConfig(501, **options), gossip=form)


def test_the_papers_form_says_that_it_is_not_private_as_stated_and_what_holds() -> None:
    promise = epoch_guarantee(gossip("own"))
    assert promise.marks == (NOT_PRIVATE,)
    assert promise.cost.epsilon_micro == 100_500_000  # 1 + (200 - 1) / 2
    assert promise.claimed is not None
    assert promise.claimed.epsilon_micro == 1_000_000
    assert NOT_PRIVATE in page_text(Promises(promise))
    three = epoch_guarantee(gossip("own", records_per_user=3)).lifetime.cost.epsilon_micro
    assert three == 1_000_000 * (3 + (200 - 3) / 2)


def test_gradients_at_what_was_sent_cost_epsilon_a_record() -> None:
    promise = epoch_guarantee(gossip("sent", records_per_user=5))
    assert promise.marks == ()
    assert promise.cost.epsilon_micro == 1_000_000
    assert promise.lifetime.cost.epsilon_micro == 5_000_000
    assert 0 < promise.residue_units < 1 << 40


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_the_true_epsilon_is_the_sum_of_what_each_round_can_tell(rounds: int) -> None:
    """Of a person's rounds epsilon each, of every other one after their first half of it; their worst rounds."""
    form = GossipConfig(epsilon=0.3, rounds=rounds, gradient_at="own")
    for records in range(1, rounds + 1):
        worst = max(
            sum(0.3 if round_ in own else 0.15 for round_ in range(min(own), rounds))
            for own in combinations(range(rounds), records)
        )
        assert float(gossip_epsilon(form, records)) == pytest.approx(worst)
    assert gossip_epsilon(form, rounds + 1) == gossip_epsilon(form, rounds), "nobody has more records than rounds"


@pytest.mark.parametrize(
    ("config", "records", "crossing", "verdict"),
    [
        (tmc(8.0), 447, 15.6, "will beat isolated nodes"),
        (tmc(0.5), 447, 2432, "will not beat isolated nodes"),
        (tmc(1.0), 447, 663, "may or may not beat isolated nodes"),
    ],
)
def test_advice_names_the_crossing_and_says_so_plainly(
    config: PdolConfig, records: int, crossing: float, verdict: str
) -> None:
    advice = advise(config, records)
    assert advice.crossing == pytest.approx(crossing, rel=0.01)
    assert advice.verdict == verdict
    assert verdict in advice.as_text()


def test_sharing_does_not_help_with_what_no_other_node_has() -> None:
    assert advise(tmc(8.0), 447, private_features=1 / 3).verdict == "will not beat isolated nodes"
    assert advise(replace(tmc(8.0), nodes=1), 447).crossing is None


def test_the_crossing_is_where_the_expected_gain_begins() -> None:
    for nodes, domains in ((64, 64), (64, 1), (8, 4)):
        sharing = SharingConfig("blt", 2.0, 1e-6, 14, 32, domains)
        config = PdolConfig("x", nodes, RecordConfig(501), sharing)
        crossing = advise(config, 100).crossing * domains / nodes
        assert advise(config, 0.99 * crossing).gain == 0
        assert 0 < advise(config, 1.01 * crossing).gain < 0.01
        assert advise(config, 1e9).gain == pytest.approx(1, abs=1e-3)


BAD = {
    ("nodes",): [0, -1, 1.0, True, 1 << 17],
    ("deployment",): ["", "a b", None],
    ("records", "dimension"): [0, 1 << 20, 3.0, True],
    ("records", "records_per_user"): [0, -1, 1.5],
    ("sharing", "counter"): ["tree", ""],
    ("sharing", "epsilon"): [0, -1, NAN, INF, 21, "1"],
    ("sharing", "delta"): [0, 1, -1e-6, NAN],
    ("sharing", "slots_per_release"): [0, 1.0, 1 << 21],
    ("sharing", "horizon"): [0, 1 << 17],
    ("sharing", "domains"): [0, 65, 1.0],
    ("model", "radius"): [0, -1, NAN, 2000],
    ("model", "threshold"): [-1, NAN, 101],
    ("model", "releases_per_version"): [0, 1.5],
    ("prediction", "place"): ["", "edge"],
    ("prediction", "rate"): [0, NAN],
    ("prediction", "share"): [-0.1, 0.6, NAN],
    ("prediction", "local_rate"): [0, INF],
    ("gossip", "epsilon"): [0, NAN, 1e7],
    ("gossip", "rounds"): [0, 1.5],
    ("gossip", "graph"): ["star", ""],
    ("gossip", "graph_seed"): [-1, 0.5],
    ("gossip", "step"): [0, NAN, 2000],
    ("gossip", "lasso"): [-1, NAN],
    ("gossip", "gradient_at"): ["released", ""],
}
SECTIONS = {
    "records": lambda **more: RecordConfig(**{"dimension": 5, **more}),
    "sharing": SharingConfig,
    "model": ModelConfig,
    "prediction": PredictionConfig,
    "gossip": lambda **more: GossipConfig(**{"epsilon": 1.0, "rounds": 5, "gradient_at": "sent", **more}),
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in BAD.items() for value in values])
def test_impossible_settings_are_refused_by_name(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"^{'.'.join(KIND.language.key_of(path))}: expected"):
        _configured(path, value)


def _configured(path: tuple[str, ...], value: object) -> PdolConfig:
    options: dict = {"deployment": "x", "nodes": 64, "records": RecordConfig(5)}
    section = value if len(path) == 1 else SECTIONS[path[0]](**{path[1]: value})
    return PdolConfig(**{**options, path[0]: section})


def test_a_configuration_is_read_and_unknown_keys_are_refused() -> None:
    adapter = TypeAdapter(PdolConfig)
    content = {"deployment": "x", "nodes": 64, "records": {"dimension": 501}, "sharing": {"epsilon": 2}}
    config = adapter.validate_python(content)
    assert config.sharing.epsilon == 2.0
    assert adapter.validate_python(asdict(config)) == config
    for wrong in ({**content, "colour": 1}, {**content, "sharing": {"epsilons": 2}}):
        with pytest.raises(ValidationError, match="Unexpected keyword argument"):
            adapter.validate_python(wrong)


def test_everything_is_in_the_digest() -> None:
    config = tmc()
    changed = [
        replace(config, nodes=63),
        replace(config, records=RecordConfig(502)),
        replace(config, sharing=replace(config.sharing, slots_per_release=15)),
        replace(config, sharing=replace(config.sharing, horizon=33)),
        replace(config, model=ModelConfig(threshold=0.3)),
        replace(config, prediction=PredictionConfig("node")),
    ]
    assert len({pdol_digest(one) for one in (config, *changed)}) == len(changed) + 1


def test_nodes_are_dealt_to_domains_evenly() -> None:
    config = PdolConfig("x", 10, RecordConfig(5), SharingConfig(domains=4))
    dealt = [config.domain_of(node) for node in range(10)]
    assert dealt == sorted(dealt)
    assert {dealt.count(domain) for domain in range(4)} <= {2, 3}


def test_one_node_has_no_graph_and_a_graph_must_exist() -> None:
    gossip = GossipConfig(epsilon=1.0, rounds=5, graph="random-regular")
    with pytest.raises(ConfigurationError, match="nodes: expected at least 2 where neighbours exchange parameters"):
        PdolConfig("x", 1, RecordConfig(5), gossip=gossip)
    KIND.check(PdolConfig("x", 6, RecordConfig(5), gossip=gossip))
    with pytest.raises(BadGraph, match="expected"):
        KIND.check(PdolConfig("x", 4, RecordConfig(5), gossip=gossip))


def test_sums_that_could_leave_the_lattice_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected sums below 2\^32"):
        epoch_guarantee(PdolConfig("x", 2, RecordConfig(5), SharingConfig(slots_per_release=1 << 16, horizon=1 << 10)))
