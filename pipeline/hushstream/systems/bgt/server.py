"""The aggregator role: makes a version of the model and the next round from the noised sums of a round.

It makes a version at the end of a round, with the round's release, or without one if the budget is exhausted. In the
second case the model is that of kind A, and there is no further round. The version contains the next round. What the
role sends on `rounds` is made from the version, so each time it is sent again the bytes are equal.

*Rounds.* The server: makes a model and the next round from each release.

*Estimate.* Computes biases and factors from noised sums. Everything here reads releases and public features alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.signing import Signer
from hushstream.engine.journal.chain import Rounding
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PHASE_ENDS, PUBLISHING, PhaseEnds, PublishingRole, Read
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.state.declared import FIXED, Flat, State, after, boolean, listed, raw
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.configuration import UNIT, BgtConfig
from hushstream.systems.bgt.guarantee import deviation_of
from hushstream.systems.bgt.records import (
    ROUNDS,
    BadRelease,
    Float64,
    Int64,
    Model,
    Release,
    Round,
    Statement,
    content_of,
    first_round,
    model_columns,
    parse_release,
    round_fields,
)
from hushstream.systems.bgt.topics import SERVER_ZONE, STATEMENTS

_LARGEST_PRIOR = 0.4
"""Largest predicted bias of an item from features and popularity alone."""

_FEW = 10.0
"""Added to counts before a division, because a small count is mostly noise."""

_SHARE = 0.3
"""Mean square of a user's factor relative to the number of users, after the clipping of slots of kind B."""


class ItemSums(NamedTuple):
    """Noised sums of kind A.

    Attributes:
        counts: (I,).
        rest: (I,) sums of residuals.
        deviation: standard deviation of the noise on ``rest``; that on counts is this divided by the weight of a count.
    """

    counts: Float64
    rest: Float64
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class Biases:
    """Item biases from releases of kind A.

    Attributes:
        counts: (I,) noised, cut at 0.
        biases: (I,).
    """

    counts: Float64
    biases: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """The spectrum of a release of kind B.

    Attributes:
        edge: largest eigenvalue of noise alone.
        largest: (d,) the largest eigenvalues, in falling order.
        factors: (I, k) of the items, from the eigenvalues that count; k may be 0.
    """

    edge: float
    largest: Float64
    factors: Float64


def item_sums(sums: Int64, number: int, config: BgtConfig) -> ItemSums:
    """A release of kind A in units of ratings."""
    counts, rest = sums / UNIT
    return ItemSums(counts / config.release.count_weight, rest, deviation_of(number, "items", config))


def joined(first: ItemSums, second: ItemSums) -> ItemSums:
    """Join two noised copies of the same sums, weighted by their precision."""
    if not first.deviation or not second.deviation:
        return first
    one, other = first.deviation**-2, second.deviation**-2
    share = one / (one + other)
    return ItemSums(
        share * first.counts + (1 - share) * second.counts,
        share * first.rest + (1 - share) * second.rest,
        (one + other) ** -0.5,
    )


def biases_of(sums: ItemSums, features: Float64, config: BgtConfig) -> Biases:
    """Item biases: predictions from popularity and features, corrected by each item's sums by their precision.

    Popularity and features are not expected to tell more than biases differ: their coefficients have the prior variance
    of a bias. With a wider one the noise of small deployments decides the fit, and all biases with it.

    Args:
        sums: the result of `item_sums`.
        features: (I, f) public features of items.
        config: of the deployment.
    """
    counts, rest, deviation = np.maximum(sums.counts, 0.0), sums.rest, sums.deviation
    model = config.model
    known = np.column_stack((np.ones(len(counts)), np.log1p(counts), features))
    columns = counts[:, None] * known
    noise = deviation**2 + counts * model.rating_variance
    # Without noise an item that nobody rated has neither variance nor weight.
    weights = 1.0 / np.maximum(noise + counts**2 * model.bias_variance, 1e-9)
    gram = columns.T @ (weights[:, None] * columns) + np.eye(columns.shape[1]) / model.bias_variance
    prior = known @ np.linalg.solve(gram, columns.T @ (weights * rest))
    prior = np.clip(prior, -_LARGEST_PRIOR, _LARGEST_PRIOR)
    gain = counts / np.maximum(counts**2 + noise / model.bias_variance, 1e-9)
    return Biases(counts, prior + (rest - counts * prior) * gain)


def top_items(counts: Float64, config: BgtConfig) -> tuple[Int64, Float64]:
    """The most rated items, and factors of their residuals so that popular items do not fill all slots."""
    top = np.argsort(-counts, kind="stable")[: config.top].astype(np.int64)
    chosen = counts[top] + _FEW
    return top, np.sqrt((counts[top].mean() + _FEW) / chosen)


def spectrum_of(
    sums: Int64, slots: int, number: int, top: Int64, gains: Float64, counts: Float64, config: BgtConfig
) -> Spectrum:
    """The test for factors, and the factors that pass it.

    Noise alone is a symmetric matrix of independent cells of deviation sigma off the diagonal: its largest eigenvalue
    lies near 2 sigma sqrt(M) (Wigner), the edge. An eigenvalue l beyond it is that of a signal l' = (l + sqrt(l^2 -
    edge^2)) / 2, whose direction and the found one have a squared cosine of 1 - (edge / 2 l')^2 (Benaych-Georges,
    Nadakuditi 2011, for Wigner noise). An eigenvalue counts from `edge_margin` edges.

    Args:
        sums: (M (M - 1) / 2,) of the release.
        slots: how many slots there were.
        number: of the round.
        top: (M,) see `Round`.
        gains: (M,) see `Round`.
        counts: (I,) of `Biases`.
        config: of the deployment.
    """
    size = len(top)
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size, -1)] = sums / UNIT**2
    values, vectors = np.linalg.eigh(matrix + matrix.T)
    most = min(config.release.factors, size)
    values, vectors = values[::-1][:most], vectors[:, ::-1][:, :most]
    edge = 2 * deviation_of(number, "pairs", config) * size**0.5
    # Without noise every positive eigenvalue is signal.
    kept = int(np.count_nonzero(values > max(config.model.edge_margin * edge, 1e-9)))
    factors = np.zeros((len(counts), kept))
    signal = (values[:kept] + np.sqrt(values[:kept] ** 2 - edge**2)) / 2
    cosine = 1 - (edge / (2 * signal)) ** 2
    scale = np.sqrt(signal * cosine * _SHARE * slots)
    factors[top] = _signed(vectors[:, :kept]) * scale / (gains * (counts[top] + _FEW))[:, None]
    return Spectrum(edge, values, factors)


def factors_of(sums: Int64, counts: Float64, number: int, config: BgtConfig) -> Float64:
    """(I, k) item factors from a release of kind C: those of each item from its own sums, shrunk toward 0."""
    model, deviation = config.model, deviation_of(number, "factors", config)
    seen = counts * model.factor_weight
    noise = deviation**2 + seen * model.rating_variance
    gain = seen / np.maximum(seen**2 + noise / model.factor_variance, 1e-9)
    return np.asarray(sums / UNIT * gain[:, None])


def _signed(vectors: Float64) -> Float64:
    """Eigenvectors with a positive largest entry, because a library may return either sign."""
    if not vectors.shape[1]:
        return vectors
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.asarray(vectors * np.where(largest < 0, -1.0, 1.0))


class Server:
    """Takes releases in order; its state follows from them alone.

    Attributes:
        asked: the open round; None after the last.
        model: the best model from the releases so far, published after each.
        spectrum: of the release of kind B, once there is one.
    """

    __slots__ = ("_config", "_features", "_found", "_sums", "asked", "model", "spectrum")

    def __init__(self, config: BgtConfig, features: Float64 | None = None) -> None:
        """Begin before the first release.

        Args:
            config: of the deployment.
            features: (I, f) public features of items.

        Raises:
            BadRelease: features have another shape, or are not finite.
        """
        features = np.zeros((config.items, 0)) if features is None else features
        if features.shape != (config.items, config.features) or not np.isfinite(features).all():
            expected = config.items, config.features
            raise BadRelease(f"features: expected finite numbers of shape {expected}, got {features.shape}")
        self._config, self._features = config, features
        self.asked: Round | None = first_round(config)
        self.model = self.asked.model
        self.spectrum: Spectrum | None = None
        self._found: Biases | None = None
        self._sums: ItemSums | None = None

    @property
    def counts(self) -> Float64:
        """(I,) noised numbers of ratings of items from slots of kind A; zeros before the first release.

        A rating counts 1, or less if its slot was scaled down.
        """
        return np.zeros(self._config.items) if self._found is None else self._found.counts

    def take(self, release: Release) -> None:
        """Learn from a release, and open the next round.

        Raises:
            BadRelease: it is not of the open round, or not of its kind.
        """
        asked = self.asked
        if asked is None or (release.number, release.kind) != (asked.number, asked.kind):
            expected = "none after the last" if asked is None else f"round {asked.number} ({asked.kind})"
            raise BadRelease(f"release: expected {expected}, got round {release.number} ({release.kind})")
        after = {"items": self._after_items, "pairs": self._after_pairs, "factors": self._after_factors}
        after[release.kind](asked, release)

    def stop(self) -> None:
        """End early, for instance if the budget refuses the next round.

        The model keeps its biases and loses its factors: without kind C only the most rated items have factors.
        """
        self.asked = None
        self.model = Model(self.model.biases, np.zeros((self._config.items, 0)))

    def _after_items(self, asked: Round, release: Release) -> None:
        sums = item_sums(release.sums, release.number, self._config)
        self._sums = sums if self._sums is None else joined(self._sums, sums)
        self._found = biases_of(self._sums, self._features, self._config)
        self.model = Model(self._found.biases, np.zeros((self._config.items, 0)))
        if asked.number + 1 == ROUNDS:
            self.asked = None
            return
        top, gains = top_items(self._found.counts, self._config)
        self.asked = Round(1, "pairs", self.model, top, gains)

    def _after_pairs(self, asked: Round, release: Release) -> None:
        assert self._found is not None
        counts = self._found.counts
        found = spectrum_of(release.sums, release.slots, 1, asked.top, asked.gains, counts, self._config)
        self.spectrum = found
        if found.factors.shape[1]:
            # Until kind C is released, only the top items have factors.
            self.model = Model(self._found.biases, found.factors)
            self.asked = Round(2, "factors", self.model)
        else:
            self.asked = Round(2, "items", self.model)

    def _after_factors(self, asked: Round, release: Release) -> None:
        assert self._found is not None
        factors = factors_of(release.sums, self._found.counts, release.number, self._config)
        self.model, self.asked = Model(self._found.biases, factors), None


_COLLECTORS = 1


_KINDS = frozenset({"RatingSums", "Seal"})


class BgtAggregatorMachine(PublishingRole):
    """The aggregator of the one model track."""

    state = State(
        "a rating aggregator's state",
        "RatingAggregatorState",
        PUBLISHING,
        phase_ends=Flat(PHASE_ENDS),
        as_stated=boolean(),
        taken=listed("bytes"),
        waiting=raw(),
        stopped=boolean(),
        server=after("_learn_again"),
    )
    rounding = Rounding(
        {"biases": "<f8", "factors": "<f8", "gains": "<f8", "edge": "<f8", "largest": "<f8"}, 1e-9, ("digest",)
    )
    derived: ClassVar[Mapping[str, str]] = {"_signer": FIXED}
    system: BgtSystem

    def __init__(self, system: BgtSystem, track: int, signer: Signer | None = None) -> None:
        """Bind to a deployment.

        Args:
            system: the deployment.
            track: 0, as there is one model track.
            signer: signs models, where devices take them.
        """
        identity = aggregator_identity(system, track)
        super().__init__(system, identity, "RatingModel", ("releases", track), SERVER_ZONE)
        self.phase_ends = PhaseEnds(_COLLECTORS)
        self._signer = signer
        self.as_stated = True
        self.server = Server(system.config, system.features)
        self.taken: list[bytes] = []
        """The releases that the model is made of; the rest of the server's state follows from them."""
        self.waiting = b""
        """The release of the round that has not ended yet; empty while there is none."""
        self.stopped = False

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a version for each round, and with it the next round."""
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            if self.accept(one, batch, self._take):
                announced = partial(self._announced, one.record.timestamp_ms)
                self.publish(one.record.offset + 1, self._version(), batch, announced)
        return self.finished(slices, batch)

    def _take(self, one: Read, batch: Batch) -> bool:
        if one.name == "Seal":
            return self.ends_phase(one.fields, batch) and self._round_ended()
        self._on_release(one.fields, one.record, batch)
        return False

    def _on_release(self, fields: dict[str, Any], record: InputRecord, batch: Batch) -> None:
        """Keep a release until its round ends."""
        if fields["release_id"].hex() in self.known:
            batch.counts[Outcome.REPEATED_RELEASE] += 1
            return
        asked = self.server.asked
        try:
            if asked is None or self.waiting:
                raise BadRelease("release: expected one release of each round, got another")
            parse_release(fields, asked, self.system.config)
        except BadRelease:
            raise Refused(Refusal.MALFORMED_RELEASE) from None
        self.first_time(fields["release_id"].hex())
        self.waiting = record.value
        self.as_stated = self.as_stated and fields["private_as_stated"]
        batch.counts[Outcome.RELEASE] += 1

    def _round_ended(self) -> bool:
        """Learn from the round's release, if there is one; returns whether a version follows."""
        if self.server.asked is None:
            return False
        if self.waiting:
            self._learn(self.waiting)
            self.waiting = b""
        else:
            self._stop()
        return True

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        server, columns = self.server, model_columns(self.server.model)
        asked = round_fields(server.asked, self.version + 1, self.system.digest)
        spectrum = server.spectrum
        return {
            **columns,
            "round": len(self.taken),
            "next_kind": asked["kind"],
            "top": asked["top"],
            "gains": asked["gains"],
            "edge": 0.0 if spectrum is None else float(spectrum.edge),
            "largest": b"" if spectrum is None else np.asarray(spectrum.largest).astype("<f8").tobytes(),
            **self.system.stated[self.as_stated],
            "digest": self.chain.digester.digest("model", columns["biases"], columns["factors"]),
        }

    def _announced(self, now_ms: int, fields: Mapping[str, Any]) -> tuple[Output, ...]:
        """The outputs of a version, from its journal record alone: the next round, and the signed model for devices."""
        items = self.system.config.items
        asked = {
            "config_digest": self.system.digest,
            "number": fields["version"],
            "kind": fields["next_kind"],
            "kept": len(fields["factors"]) // (8 * items) if fields["next_kind"] == "factors" else 0,
            "top": fields["top"],
            "gains": fields["gains"],
        }
        announced = Output("rounds", self.journal[1], codec.encode("RatingRound", asked))
        if self._signer is None:
            return (announced,)
        content = content_of(fields)
        signed = _stated(self.system, fields, content, now_ms).signed(self._signer, self.system.digest, content)
        return (announced, Output(STATEMENTS.name, self.journal[1], codec.encode(STATEMENT_RECORD, signed)))

    def _learn_again(self) -> None:
        """Make the model of all releases that were taken."""
        self.server = Server(self.system.config, self.system.features)
        for release in self.taken:
            self._give_to_server(release)
        if self.stopped:
            self.server.stop()

    def _learn(self, value: bytes) -> None:
        self._give_to_server(value)
        self.taken.append(value)

    def _give_to_server(self, value: bytes) -> None:
        asked = self.server.asked
        assert asked is not None
        self.server.take(parse_release(codec.decode(value)[1], asked, self.system.config))

    def _stop(self) -> None:
        self.server.stop()
        self.stopped = True


def _stated(system: BgtSystem, fields: Mapping[str, Any], content: bytes, now_ms: int) -> Statement:
    """The statement of a version.

    Args:
        system: the deployment.
        fields: of the version's `RatingModel`.
        content: see `content_of`.
        now_ms: log time of the record that the version followed from.
    """
    config = system.config
    return Statement(
        deployment=config.deployment,
        configuration=system.digest.hex(),
        version=fields["version"],
        issued_ms=now_ms,
        expires_ms=now_ms + round(config.model.valid_seconds * 1000),
        epsilon_micro=fields["epsilon_micro"],
        delta_units=str(int.from_bytes(fields["delta_units"], "big")),
        private_as_stated=fields["private_as_stated"],
        content_sha256=hashlib.sha256(content).hexdigest(),
        content_bytes=len(content),
        kind=fields["next_kind"],
        factors=len(fields["factors"]) // (8 * config.items),
        top=len(fields["top"]) // 4,
    )
