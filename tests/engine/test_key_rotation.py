"""Keys that turn under a running journal: new noise under the new key, nothing noised twice, no byte left to chance."""

import numpy as np
import pytest

from hushstream.engine.journal.chain import ForeignJournal
from hushstream.engine.records import OffChain
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.key_files import KeyRing, next_key
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.systems.colin.counter import CounterMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.slots import Report

OLD = Key(b"\x07" * 31 + b"\x02")
NEW = next_key(OLD, 1)
BEFORE = KeyRing(0, 0, (), OLD)
TURNED = KeyRing(0, 1, (), OLD)
RETIRED = KeyRing(1, 1, ((0, OLD.key_id),), NEW)


class Turning:
    """A machine that begins under the old key and is restarted when the key file has turned."""

    def __init__(self, rig, make):
        self.rig = rig
        self.make = make
        self.rig.machine = self.resumed(BEFORE)

    def resumed(self, ring, snapshot=None, key=OLD):
        machine = self.make(key, ring)
        machine.start(self.rig.genesis)
        if snapshot is not None:
            machine.restore(snapshot)
        return machine

    def restart(self, ring):
        self.rig.machine = self.resumed(ring, self.rig.machine.snapshot())

    @property
    def rotations(self):
        return [record["turned_to"] for record in self.rig.seen.journals]

    @property
    def epochs(self):
        return [record["head"]["epoch"] for record in self.rig.seen.journals]


class TurningCounter(Turning):
    def __init__(self, related, **release):
        system = related.make_system(release={**related.DEFAULTS["release"], "epochs": 1, **release})
        super().__init__(related.CounterRig(system, OLD), lambda key, ring: CounterMachine(system, 0, key, ring))
        self.related, self.given = related, []

    def step(self, number):
        rows = self.related.some_rewards(number, 4)
        self.given += rows
        self.rig.rewards(number, rows)
        return self.rig.fold()


class TurningShuffler(Turning):
    def __init__(self, rigs, **release):
        system = rigs.make_system(release={"window_slots": 4, **release})
        rig = rigs.ShufflerRig(system, OLD)
        super().__init__(rig, lambda key, ring: ShufflerMachine(system, 0, key, (), ring))
        self.rigs = rigs

    def step(self, number):
        for slot in range(4 * number, 4 * number + 4):
            self.rig.slot(slot, Report(slot % self.rigs.CODES, slot % self.rigs.ARMS, slot % 2))
        return self.rig.fold()


@pytest.fixture(params=["counter", "fresh windows", "running windows"])
def turning(request, rigs, related):
    """Two steps under the old key, two after the file turned."""
    if request.param == "counter":
        made = TurningCounter(related)
    else:
        made = TurningShuffler(rigs, **({} if request.param == "fresh windows" else {"sums": "counter", "windows": 64}))
    for number in range(2):
        made.step(number)
    made.restart(TURNED)
    for number in range(2, 5):
        made.step(number)
    return made


def test_the_first_record_after_a_restart_names_the_new_key_and_the_next_opens_an_epoch(turning):
    assert turning.rotations == [b"", b"", NEW.key_id, b"", b""]
    assert turning.epochs == [0, 0, 0, 1, 1]


def test_readers_follow_the_journal_and_not_their_own_file(turning):
    """A worker whose file turned twice meanwhile replays the first turn as it was; its own next record turns on."""
    ahead = turning.make(OLD, KeyRing(0, 2, (), OLD))
    turning.rig.replayed(ahead)
    turning.rig.machine = ahead
    turning.step(5)
    turning.step(6)
    assert turning.rotations[-2:] == [next_key(NEW, 2).key_id, b""]
    assert turning.epochs[-2:] == [1, 2]


def test_a_file_that_has_not_turned_yet_refuses_what_came_after_the_turn(turning):
    with pytest.raises(KeyFileError, match="expected a key of epochs 0 to 0"):
        turning.rig.replayed(turning.make(OLD, BEFORE))


def test_whoever_holds_the_old_key_alone_can_add_nothing_after_the_turn(turning):
    """The chain after the turn is closed under the new key: an old worker that wakes up writes off the chain."""
    zombie = turning.make(OLD, BEFORE)
    zombie.start(turning.rig.genesis)
    for value in turning.rig.journal[:2]:
        zombie.replay(value, [turning.rig.slice(part) for part in zombie.recovery_ranges(value)])
    log = turning.rig.arrived() or [turning.rig.slice(part) for part in zombie.recovery_ranges(turning.rig.journal[2])]
    steps = zombie.fold(log)
    assert steps[0].journal not in turning.rig.journal
    after = turning.resumed(TURNED)
    for value in turning.rig.journal[:3]:
        after.replay(value, [turning.rig.slice(part) for part in after.recovery_ranges(value)])
    later = zombie.fold([turning.rig.slice(part) for part in after.recovery_ranges(turning.rig.journal[3])])
    with pytest.raises(OffChain):
        after.replay(later[0].journal, [])


def test_after_the_old_key_is_destroyed_a_snapshot_leads_on_and_nothing_else_does(turning):
    snapshot = turning.rig.machine.snapshot()
    on = turning.resumed(RETIRED, snapshot, key=NEW)
    assert on.snapshot() == snapshot
    turning.rig.machine = on
    assert turning.step(5).journals[0]["head"]["epoch"] == 1
    with pytest.raises(ForeignJournal, match="key_id"):
        turning.make(NEW, BEFORE).start(turning.rig.genesis)


def test_a_snapshot_from_before_the_turn_is_of_no_use_without_the_old_key(turning):
    old = turning.resumed(BEFORE).snapshot()
    with pytest.raises(RetiredKey, match="epoch 0"):
        turning.resumed(RETIRED, old, key=NEW)


def test_a_machine_without_a_key_file_cannot_follow_a_turn(turning):
    with pytest.raises(KeyFileError, match="expected the key file of the zone"):
        turning.rig.replayed(turning.make(OLD, None))


def sums_by_user(related, releases):
    """What the published sums of each user are after each release, int64 (steps, N, d)."""
    state = np.zeros((len(related.USERS), related.DIMENSION), dtype=np.int64)
    states = []
    for release in releases:
        blocks, sums = related.arrays_of(release)
        state[blocks] = sums
        states.append(state.copy())
    return np.array(states)


def test_a_turn_noises_no_reward_again_and_pays_only_for_what_comes(related):
    """After the turn a user's sums are what was released before, and the noised sums of what came since."""
    made = TurningCounter(related)
    for number in range(2):
        made.step(number)
    made.restart(TURNED)
    made.step(2)
    settled = len(made.given)
    before = sums_by_user(related, made.rig.released())[-1]
    made.step(3)
    release = made.rig.released()[-1]
    blocks, sums = related.arrays_of(release)
    new_noise = sums - before[blocks] - related.lattice_sums(made.given[settled:])[blocks]
    fresh = TurningCounter(related)
    fresh.rig.machine = fresh.resumed(TURNED, made.rig.machine.snapshot())
    own = fresh.rig.machine.noised_sums
    drawn = own._own_sums(blocks) - related.lattice_sums(made.given[settled:])[blocks]
    assert np.array_equal(new_noise, drawn), "nothing but the new epoch's own noise is added to what was released"
    assert new_noise.any()
    price = made.rig.system.guarantee().epsilon_micro
    assert [record["debit"]["epsilon_micro"] for record in made.rig.seen.journals] == [price, 0, 0, price]
    assert [record["debit"]["scope"] for record in made.rig.seen.journals][2:] == ["epoch/0/0", "epoch/0/1"]
    own_variance = made.rig.released()[0]["variance"]
    assert release["variance"] == pytest.approx(2 * own_variance)


def test_a_turn_opens_no_way_around_a_budget_that_is_spent(related):
    """Where a mismatch has used the last epoch, a turned key releases nothing more either."""
    made = TurningCounter(related)
    for number in range(3):
        made.step(number)
    made.rig.altered(1, **related.reward_fields(related.some_rewards(900, 4)))
    machine = made.resumed(TURNED)
    related.recover(made.rig, machine)
    made.rig.machine = machine
    for number in range(5, 8):
        seen = made.step(number)
        assert not seen.releases("releases")
        assert seen.counts["release_withheld"] == 1
    assert NEW.key_id in made.rotations


def test_the_same_slots_under_both_keys_have_other_noise(rigs):
    def sums_of(ring):
        made = TurningShuffler(rigs)
        made.step(0)
        made.restart(ring)
        for number in range(1, 3):
            made.step(number)
        return made.rig.sums_of()

    stayed, turned = sums_of(BEFORE), sums_of(TURNED)
    assert [a["ones"] == b["ones"] for a, b in zip(stayed, turned, strict=True)] == [True, True, False]


def test_a_counter_over_windows_begins_anew_with_the_key(rigs):
    made = TurningShuffler(rigs, sums="counter", windows=64)
    for number in range(2):
        made.step(number)
    made.restart(TURNED)
    for number in range(2, 5):
        made.step(number)
    assert made.rig.machine.windows_covered == 2
    price = made.rig.system.guarantee().epsilon_micro
    debits = [record["debit"] for record in made.rig.seen.journals]
    assert [debit["epsilon_micro"] for debit in debits] == [price, 0, 0, price, 0]
    assert [debit["scope"] for debit in debits] == ["epoch/0/0"] * 3 + ["epoch/0/1"] * 2


def test_a_record_cannot_be_made_to_turn_by_changing_it(turning):
    name, fields = codec.decode(turning.rig.journal[0])
    forged = codec.encode(name, {**fields, "turned_to": NEW.key_id})
    fresh = turning.resumed(TURNED)
    with pytest.raises(OffChain):
        fresh.replay(forged, [turning.rig.slice(part) for part in fresh.recovery_ranges(forged)])
