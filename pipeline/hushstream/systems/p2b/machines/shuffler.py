"""The shuffler role (shuffler zone): collects fixed-size reports in windows, and releases each window when it closes.

`ShufflerMachine.fold` shows the way of a slot: it is decoded, checked, and joins the open window. A window that closes
is charged, noised, journaled and released (`ShufflerMachine._release`).

The noise address contains the window's content, so a journal that was rolled back draws other noise over other slots.
A counter over windows draws noise ahead of its input. So when a rollback is suspected
(`Machine.request_epoch`), it begins anew in a new epoch, at its price. It also begins anew under the next key;
no slot is in two counters then, so that costs nothing more.

*Release.* The release of a closed P2B window: its noise address, its sums, and the fields of its record of sums.

*Running.* Sums of a partition's windows through a counter, published window by window as differences.

After window t the counter's release is the noised total of all windows so far. Its difference to the release before is
published. The differences of all windows up to t add up to the release after t, so a reader of sums need not know
that there is a counter. Differences are post-processing of the counter's releases.

If the model forgets, differences are added up with weights (`hushstream.systems.p2b.server.totals`). The variance
that is published is then that of the weighted sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Counter, NegativeDigitTree
from hushstream.engine.batch import Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.kept import BadSeal
from hushstream.engine.devices.sealing import Openers, SlotPlace
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Read, ReleasingRole, releasing_state
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.release_parts import parts_of_record
from hushstream.engine.state.declared import FIXED, Single, optional_part
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    Parameter,
    bernoulli,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
    probability_units,
)
from hushstream.schemas import codec
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import summed_of
from hushstream.systems.p2b.lift import variance_after
from hushstream.systems.p2b.server.totals import fade_of_windows
from hushstream.systems.p2b.shuffler import (
    CellSums,
    ClosedWindow,
    Domain,
    ItemRows,
    Reports,
    ShufflingError,
    SlotOutcome,
    Windows,
    linear_sums,
    noised_sums,
    paper,
    slot_sums,
    tuple_sums,
    tuples,
)
from hushstream.systems.p2b.slots import SLOT_RECORD, BadSlot, unpack_all, unpack_reports
from hushstream.systems.p2b.topics import SHUFFLER_ZONE

FIRST_EPOCH = 0
"""A journal's first epoch. A key rotation opens the next one; inputs that differ from the journaled ones stop the role
(`ReplayMismatch`)."""


# Sums of windows through a counter.


class RunningStep(NamedTuple):
    """What one window adds: noised sums, int64 (cells,), and how much the variance of the total changes.

    If windows fade, the change is V(t) - fade^2 V(t - 1), the part that does not come from fading.
    """

    sums: NDArray[np.int64]
    variance: float


class RunningSums:
    """The counter over the windows of one partition."""

    def __init__(self, tree: NegativeDigitTree, key: Key, address: NoiseAddress, fade: float = 1.0) -> None:
        """Begin before the first window.

        Args:
            tree: the mechanism of the counter.
            key, address: name the noise.
            fade: factor of the weights of earlier windows with each later one.
        """
        self._tree = tree
        self._fade = fade
        self._counter: Counter = tree.open(key, address)

    @property
    def windows(self) -> int:
        """How many windows were added."""
        return self._counter.leaves

    def step(self, sums: NDArray[np.int64]) -> RunningStep:
        """Add a window's exact sums, (cells,), and return what is published for it.

        Raises:
            HorizonReached: more windows than the counter's price pays for.
        """
        before = self._released()
        self._counter.add(sums[None, :])
        return RunningStep(self._counter.release().values - before, self._change())

    def dump(self) -> bytes:
        """The state; as sensitive as the slots."""
        return self._counter.dump()

    def load(self, state: bytes) -> None:
        """Return to a state that `dump` wrote.

        Raises:
            BadState: these are not the bytes of such a state.
        """
        self._counter.load(state)

    def _released(self) -> NDArray[np.int64]:
        if not self._counter.leaves:
            return np.zeros(self._tree.dimension, dtype=np.int64)
        return self._counter.release().values

    def _change(self) -> float:
        leaves = self._counter.leaves
        if self._fade == 1.0:
            return variance_after(self._tree, leaves) - variance_after(self._tree, leaves - 1)
        return float(self._tree.faded_changes(leaves, leaves, self._fade)[0])


def open_running(
    tree: NegativeDigitTree | None, key: Key, address: NoiseAddress, fade: float = 1.0
) -> RunningSums | None:
    """The counter of a partition; None if each window has fresh noise. Arguments as in `RunningSums`."""
    return None if tree is None else RunningSums(tree, key, address, fade)


# A window.


@dataclass(frozen=True, slots=True)
class WindowRelease:
    """The release of one window.

    Attributes:
        window_id: id of the window.
        record: the fields of its record of sums.
        forged: how many of its slots held neither a report nor null; zone-private.
    """

    window_id: bytes
    record: Mapping[str, Any]
    forged: int


def release_window(
    system: P2BSystem,
    key: Key,
    genesis_nonce: bytes,
    partition: int,
    closed: ClosedWindow,
    running: RunningSums | None = None,
    epoch: int = FIRST_EPOCH,
) -> WindowRelease:
    """Release a closed window: a function of its slots, the key and the journal's genesis, and of nothing else.

    The address of noise and coins contains the window and its content (`window_address`). If a journal is rolled back
    and closes the window again over other slots, both are drawn anew: a slot that is in both releases pays twice, and
    no more.

    Args:
        system: the deployment.
        key: the shuffler's key.
        genesis_nonce: of the partition's journal.
        partition: the home partition of the window.
        closed: the window.
        running: the counter over the partition's windows in this epoch, if there is one; the window is added to it.
        epoch: the epoch of noise.
    """
    terms, shape, release = terms_of(system), (2, *system.form.shape), system.config.release
    address = window_address(system, key, genesis_nonce, partition, closed, epoch)
    # The shuffler's secret coin for each slot of the window, nulls included.
    coins = bernoulli(KeyedStream(key, address.at("sampling")), terms.sampling_units, len(closed.contents))
    # Sums are exact here, and zone-private until there is noise on them. Counts above a threshold leave as they are.
    summed = _of_codes if release.form == "codes" else _of_features
    sums, forged = summed(system, closed, coins)
    if release.mode in ("tuples", "paper"):
        variance = 0.0
    elif running is not None:
        step = running.step(np.concatenate([sums.ones.ravel(), sums.zeros.ravel()]))
        (ones, zeros), variance = step.sums.reshape(shape), step.variance
        sums = replace(sums, ones=ones, zeros=zeros)
    else:
        assert terms.scale is not None
        numerator, denominator = terms.scale
        noise = discrete_laplace(KeyedStream(key, address), numerator, denominator, math.prod(shape)).reshape(shape)
        variance = laplace_variance(numerator, denominator)
        sums = noised_sums(sums, noise)
    window_id = key.digest(
        "window-id", genesis_nonce, closed.window.to_bytes(8, "little"), partition.to_bytes(4, "little")
    )
    record = {
        **terms.record,
        **system.stated[system.as_stated(key.reproducible)],
        "window_id": window_id,
        "slots": len(closed.contents),
        "ones": sums.ones.astype("<i8").tobytes(),
        "zeros": sums.zeros.astype("<i8").tobytes(),
        "variance": variance,
        **({} if closed.item_rows is None else closed.item_rows._asdict()),
    }
    return WindowRelease(window_id, record, forged)


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """The values that all releases of a deployment share; they follow from the configuration alone.

    Attributes:
        mechanism: its name, in journals and addresses.
        sampling_units: probability that a report is kept (`hushstream.privacy.mechanisms.noise`).
        scale: the scale of the noise of a sum (of slot sums in units of 1/M), as a fraction; None in other modes.
        parameters: every parameter that the noise depends on, as whole numbers.
        text: the parameters as the journal has them: canonical JSON.
        domain: of reports of codes; None for declared features.
        record: the fields that are equal in all records.
    """

    mechanism: str
    sampling_units: int
    scale: tuple[int, int] | None
    parameters: Mapping[str, int | str]
    text: str
    domain: Domain | None
    record: Mapping[str, Any]


@lru_cache(maxsize=64)
def terms_of(system: P2BSystem) -> ReleaseTerms:
    """The terms of a deployment, computed once."""
    config, parameters = system.config, _parameters(system)
    release, mechanism = config.release, summed_of(config).mechanism
    return ReleaseTerms(
        mechanism=mechanism,
        sampling_units=probability_units(release.sampling),
        scale=laplace_scale(system.noise_epsilon, summed_of(config).sums[1]) if release.mode == "slot-sums" else None,
        parameters=parameters,
        text=json.dumps(parameters, sort_keys=True, separators=(",", ":")),
        domain=Domain(*system.form.shape, release.levels) if release.form == "codes" else None,
        record={
            "config_digest": system.digest,
            "mode": mechanism,
            **system.form.domain,
        },
    )


def release_address(
    system: P2BSystem,
    genesis_nonce: bytes,
    partition: int,
    epoch: int = FIRST_EPOCH,
    window: int | None = None,
    content: bytes = b"",
) -> NoiseAddress:
    """The address of the noise of a partition's releases in one epoch; of one window if ``window`` is given."""
    mechanism, parameters = terms_of(system).mechanism, terms_of(system).parameters
    place = (genesis_nonce, epoch, partition, window, content)
    return system.noise_address("release-noise", mechanism, parameters, *place)


def window_address(
    system: P2BSystem, key: Key, genesis_nonce: bytes, partition: int, closed: ClosedWindow, epoch: int = FIRST_EPOCH
) -> NoiseAddress:
    """The address of one window's noise: its number, and a keyed digest of the ids and contents of all its slots.

    The sums follow from ids, contents and coins. The digest covers the ids, so that equal noise reveals nothing about
    contents: two closings of a window have the same address only if they hold the same slots, and a slot's id stands
    for one content.

    Coins are drawn for the whole window, by position in the order of ids, and not for each slot by its id. With one
    coin for each id, a slot in two releases of a fork would have the same coin in both. That costs
    ln(1 + p (e^(2 eps) - 1)), more than the 2 ln(1 + p (e^eps - 1)) of two coins.
    """
    # Ids and contents have one size each, so the joined bytes can be read in one way.
    parts: tuple[bytes, ...] = (b"".join(closed.ids), b"".join(closed.contents))
    if closed.item_rows is not None:
        # Which slots count follows from the items of the rows: under another catalogue the same slots give other sums.
        parts = (*parts, closed.item_rows.catalogue.to_bytes(4, "little"), closed.item_rows.entries)
    content = key.digest("window-content", *parts)
    return release_address(system, genesis_nonce, partition, epoch, closed.window, content)


def _of_codes(system: P2BSystem, closed: ClosedWindow, coins: NDArray[np.bool_]) -> tuple[CellSums, int]:
    """The sums of a window of codes, and how many of its slots are forged: none, as each was checked on arrival."""
    release, domain = system.config.release, terms_of(system).domain
    assert domain is not None
    slots = unpack_all(closed.contents, domain.codes, domain.arms, domain.levels)
    # A report counts if its coin kept it.
    reports = Reports(domain, slots.codes, slots.arms, slots.levels, slots.held & coins)
    if release.mode == "tuples":
        everyone = np.ones(len(reports), dtype=np.bool_)
        return tuple_sums(reports.domain, tuples(reports, everyone, system.threshold)), 0
    if release.mode == "paper":
        return tuple_sums(reports.domain, paper(reports, system.threshold)), 0
    return slot_sums(reports), 0


def _of_features(system: P2BSystem, closed: ClosedWindow, coins: NDArray[np.bool_]) -> tuple[CellSums, int]:
    """The sums of a window of declared features, and how many of its slots held neither a report nor null."""
    layout = system.linear.layout
    assert closed.item_rows is not None, "a window of declared features says which items its rows stand for"
    reports = unpack_reports(layout, closed.contents)
    counted = coins & closed.item_rows.current(reports.arms, reports.catalogues)
    return linear_sums(layout, reports, counted), int(reports.forged.sum())


def _parameters(system: P2BSystem) -> Mapping[str, int | str]:
    """Every parameter that the noise depends on, as whole numbers."""
    release = system.config.release
    parameters: dict[str, int | str] = {
        **system.form.parameters,
        "sampling_units": str(probability_units(release.sampling)),
    }
    tree = system.window_tree
    if tree is not None:
        return {**parameters, **_plain(tree.parameters)}
    if release.mode == "slot-sums":
        numerator, denominator = laplace_scale(system.noise_epsilon, summed_of(system.config).sums[1])
        return {**parameters, "scale_numerator": numerator, "scale_denominator": denominator}
    return {**parameters, "threshold": system.threshold}


def _plain(parameters: Mapping[str, Parameter]) -> dict[str, int | str]:
    return {name: value if isinstance(value, int) else str(value) for name, value in parameters.items()}


_BESIDE = frozenset({"Seal", "Tick"})
_ITEM_ROWS = "ItemRows"
_OUTCOMES = {
    SlotOutcome.JOINED: Outcome.SLOT,
    SlotOutcome.REPEATED: Outcome.REPEATED_SLOT,
}


class ShufflerMachine(ReleasingRole):
    """The shuffler on one partition of reports."""

    state = releasing_state(
        "a shuffler's state",
        "ShufflerState",
        noise="redraw_noise",
        windows=Single("bytes", Windows.dump, lambda value, before: Windows.load(before.rules, value)),
        running_sums=optional_part("running sums"),
    )
    derived: ClassVar[Mapping[str, str]] = {"_opener": FIXED, "_slot": FIXED, "_kinds": FIXED}

    system: P2BSystem

    def __init__(
        self, system: P2BSystem, partition: int, key: Key, sealing: Sequence[Key] = (), ring: KeyRing | None = None
    ) -> None:
        """Bind to a deployment, a home partition, keys, and the zone's key file.

        Args:
            system: the deployment.
            partition: the home partition.
            key: the shuffler's key that the journal begins with.
            sealing: the keys that open devices' slots, which are sealed.
            ring: the shuffler's key file; it says from where the next key is in force.

        Raises:
            BadSeal: slots are sealed to a key that is not in ``sealing``.
        """
        identity = Identity.of(system, "shuffler", "journal-shuffler", partition)
        source = ("reports", partition)
        super().__init__(system, identity, "WindowJournal", source, SHUFFLER_ZONE, key, ring, FIRST_EPOCH)
        # Of devices a slot in clear is refused: it shows what its user did.
        self._slot = system.form.slot_record if system.sealing is None else SLOT_RECORD
        self._opener = None if system.sealing is None else Openers(system.sealing, sealing)
        self.windows = Windows(system.window_rules())
        # Devices follow no catalogue: their items are those that the configuration names.
        followed = self.windows.item_rows is not None and not system.config.devices
        self._kinds = _BESIDE | {self._slot} | ({_ITEM_ROWS} if followed else frozenset())
        self.running_sums: RunningSums | None = None

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.redraw_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each window that closes, and one for what is left."""
        batch, windows = Batch(self), self.windows
        for slot in self._checked(self.read(slices, self._kinds)):
            record, name, fields, reason = slot.read
            # Log time advances first: otherwise a slot after a window's end would be counted in that window.
            closed = windows.advance(record.timestamp_ms)
            if reason:
                batch.refuse(reason, record)
            elif name == "Tick":
                batch.counts[Outcome.TICK] += 1
            elif name == "Seal":
                try:
                    closed = windows.end_phase(fields["phase"], fields["origin"]) or closed
                    batch.counts[Outcome.SEAL] += 1
                except ShufflingError:
                    batch.refuse(Refusal.UNKNOWN_ORIGIN, record)
            elif name == _ITEM_ROWS:
                try:
                    windows.follow(ItemRows(fields["catalogue"], fields["entries"], fields["features"]))
                    batch.counts[Outcome.ITEM_CHANGED] += 1
                except ShufflingError:
                    batch.refuse(Refusal.MALFORMED_ROWS, record)
            else:
                period = int.from_bytes(fields["period"], "little", signed=True)
                offer = windows.offer(fields["report_id"], period, slot.content)
                closed = offer.closed or closed
                if offer.outcome in _OUTCOMES:
                    batch.counts[_OUTCOMES[offer.outcome]] += 1
                else:
                    batch.refuse(Refusal.STALE_PERIOD, record)
            if closed is not None:
                self._release(closed, record.offset + 1, batch)
        return self.finished(slices, batch)

    def _checked(self, records: Sequence[Read]) -> list[_Slot]:
        """Decrypt the contents of slots where they are sealed, and refuse invalid ones."""
        checked = []
        for read in records:
            content = b""
            if read.name == self._slot:
                fields = read.fields
                try:
                    content = fields["content"] if self._opener is None else self._opener.open(*_sealed(fields))
                    self.system.form.require_content(content)
                except BadSeal:
                    read = read._replace(reason=Refusal.SEALED_FOR_ANOTHER)
                except BadSlot:
                    read = read._replace(reason=Refusal.MALFORMED_SLOT)
            checked.append(_Slot(read, content))
        return checked

    # One window.

    def _release(self, closed: ClosedWindow, high: int, batch: Batch) -> None:
        """Release a window that closed with the input below ``high``; the driver appends the record, then sends."""
        # Each window is charged for itself, or all windows together for their counter.
        charge = 0 if self.running_sums is not None else closed.window
        batch.release(partial(self._draw, closed, batch), charge, Outcome.WINDOW)
        terms = terms_of(self.system)
        fields = {
            "window": closed.window,
            "slots": len(closed.contents),
            "closed_by": str(closed.closed_by),
            "mechanism": terms.mechanism,
            "parameters": terms.text,
        }
        self.end(high, fields, batch)

    def _draw(self, closed: ClosedWindow, batch: Batch, charge: ChargeResult) -> tuple[Output, ...]:
        """The noised sums of a window. Nobody knows them yet: a crash here repeats the draw from the same address."""
        if charge.refused:
            return ()
        noise, running = self.releases, self.running_sums
        release = release_window(
            self.system, noise.key, noise.nonce, self.partition, closed, running, noise.epoch.number
        )
        if release.forged:
            batch.counts[Outcome.FORGED_SLOT] += release.forged
        form = self.system.form
        if form.parts == 1:
            records = [codec.encode(form.sums_record, release.record)]
        else:
            records = parts_of_record(form.sums_record, release.record, self.system.digest)
        return (
            *[Output("window-sums", 0, value) for value in records],
            batch.ledger_entry(release.window_id, charge),
        )

    def redraw_noise(self) -> None:
        """Begin the counter over windows, if there is one, under the noise of this epoch."""
        address = release_address(self.system, self.releases.nonce, self.partition, self.releases.epoch.number)
        fade = fade_of_windows(self.system.config)
        self.running_sums = open_running(self.system.window_tree, self.releases.key, address, fade)

    # What a driver asks.

    @property
    def charge(self) -> int:
        return 0 if self.running_sums is not None else self.windows.window

    @property
    def draws_ahead(self) -> bool:
        """See `BatchMachine.draws_ahead`: only a counter over windows does."""
        return self.running_sums is not None

    @property
    def windows_covered(self) -> int:
        """How many windows were added to the counter in this epoch; 0 if there is no counter."""
        return 0 if self.running_sums is None else self.running_sums.windows

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: a tick is needed while time must close a window that holds slots."""
        open_ms = self.windows.rules.open_ms
        return self.tick_record() if open_ms is not None and self.windows.slots and idle_ms >= open_ms else None


class _Slot(NamedTuple):
    """A record of the input, and the opened content if it is a slot."""

    read: Read
    content: bytes


def _sealed(fields: Mapping[str, Any]) -> tuple[bytes, SlotPlace]:
    return fields["sealed"], SlotPlace(fields["report_id"], fields["period"], fields["config_digest"])
