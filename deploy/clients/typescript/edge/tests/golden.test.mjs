// The package must repeat the results of the Python agent (golden.py): every byte, and every decision outside the
// stated margin.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { Agreement, BadValue, EdgeAgent, EdgeError, Key, SparseModel, packSlot, unpackSlot } from "../dist/index.js";
import { blake2b } from "../dist/blake2b.js";
import { contextOf, SparseUCB } from "../dist/learner/sparse.js";
import "../dist/node.js";
import { round } from "../dist/elementary.js";
import { reportId } from "../dist/learner/candidates.js";
import { digestOf, settings } from "./gateway.mjs";

const golden = JSON.parse(await readFile(new URL("golden.json", import.meta.url), "utf8"));
const agreement = new Agreement(golden.agreement);
const { layout } = agreement;
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const shared = golden.models.map((one, place) => ({
  version: place + 1,
  model: SparseModel.of(
    layout.arms,
    layout.cells,
    Float64Array.from(one.means),
    Float64Array.from(one.variances),
    one.reward_variance,
  ),
}));

function near(found, expected, what) {
  assert.equal(found.length, expected.length, what);
  expected.forEach((one, place) => {
    const apart = Math.abs(found[place] - one);
    assert.ok(apart <= golden.margin, `${what}: expected ${one} at ${place}, got ${found[place]}`);
  });
}

test("digests of the declaration and of the layout", () => {
  assert.equal(hex(layout.schema.digest), golden.digests.features);
  assert.equal(hex(layout.digest), golden.digests.layout);
});

test("BLAKE2b, keyed and named", () => {
  for (const { size, keyed, named } of golden.hashes) {
    const message = Uint8Array.from({ length: size }, (_, place) => (place * place) % 251);
    assert.equal(hex(blake2b(message, { key: Uint8Array.from({ length: 32 }, (_, place) => place) })), keyed);
    assert.equal(hex(blake2b(message, { person: "hush-layout" })), named);
  }
});

test("keys: pseudorandom functions, report ids, coins", async () => {
  for (const one of golden.keys) {
    const key = await Key.of(bytes(one.material));
    assert.equal(hex(await key.prf("seal-slot", Uint8Array.of(0, 255), new Uint8Array(), "text")), one.prf);
    one.numbers.forEach((number, place) => {
      assert.equal(hex(reportId(key, number)), one.digests[place]);
      assert.equal(String(key.word("slot-choice", number)), one.words[place]);
    });
    for (const [event, number] of one.events) {
      assert.equal(key.uniform("exploration", new TextEncoder().encode(event), 1_000_000_000), number);
    }
  }
});

test("rows, blocks, units and contents of slots of every kind of feature", () => {
  for (const one of golden.contexts) {
    const { row, outcomes } = layout.schema.encode(one.values);
    assert.equal(hex(row), one.row);
    assert.deepEqual(outcomes, one.outcomes);
    layout.schema.require(row);
    const blocks = layout.schema.blocks(row);
    assert.deepEqual([...blocks.cells], one.cells);
    assert.deepEqual([...blocks.parts], one.parts);
    assert.deepEqual([...blocks.wholes], one.wholes);
    assert.deepEqual([...blocks.values], one.learner);
    const units = layout.unitsOf(blocks);
    assert.deepEqual([...units.units], one.units);
    const report = { arm: one.arm, level: one.level, catalogue: one.catalogue, units };
    assert.equal(hex(packSlot(layout, report)), one.content);
    assert.deepEqual(unpackSlot(layout, bytes(one.content)), report);
  }
  assert.equal(hex(packSlot(layout, null)), golden.null);
});

test("values that Python refuses", () => {
  const others = [{ age: Number.NaN }, { age: Infinity }, { taste: Array(9).fill(Number.NaN) }, { tags: [10n ** 200n] }, null];
  for (const values of [...golden.refused, ...others]) assert.throws(() => layout.schema.encode(values), BadValue);
});

test("scores of new users", () => {
  const kernel = new SparseUCB(layout.arms);
  shared.forEach(({ model }, place) =>
    golden.contexts.forEach(({ row }, number) => {
      const found = kernel.scores(model, null, contextOf(layout.schema.blocks(bytes(row))));
      near(found, golden.scores[place][number], `model ${place}, context ${number}`);
    }),
  );
});

/** Whether an arm that differs from Python's is a tie but for rounding. */
function tied(agent, row, eligible, one, found) {
  if (found.arm === one.arm) return false;
  const scores = agent.scores(row);
  return Math.abs(scores[one.arm] - scores[found.arm]) <= golden.margin && (eligible === null || eligible[one.arm]);
}

for (const life of golden.lives) {
  test(`a life: ${life.name}`, async () => {
    const terms = agreementOf(life.terms);
    const key = await Key.of(bytes(life.key));
    let agent = new EdgeAgent(terms, key);
    let ties = 0;
    life.calls.forEach((one, number) => {
      // A page may be closed and opened again at any time.
      if (number % 3 === 0) agent = EdgeAgent.resumed(terms, key, structuredCloneOf(agent.state), agent.shared);
      const row = one.row === undefined ? null : bytes(golden.contexts[one.row].row);
      if (one.call === "adopt") agent.shared = shared[one.version - 1];
      else if (one.call === "advance") {
        assert.deepEqual(agent.advance(one.now), Object.values(one.outcomes));
      } else if (one.call === "shown") assert.equal(agent.shown(one.event, one.arm), one.outcome);
      else if (one.call === "rewarded") assert.equal(agent.rewarded(one.event, one.reward, one.arm), one.outcome);
      else if (one.call === "slot") {
        const slot = agent.takeSlot(one.now);
        assert.deepEqual([hex(slot.reportId), hex(slot.content)], [one.id, one.content]);
      } else if (one.call === "publicly") {
        assert.equal(agent.withinQuota(one.now), false);
        const found = agent.decidePublicly(row, one.eligible);
        assert.deepEqual([found.arm, found.billionths], [one.arm, one.billionths]);
      } else {
        if (!one.repeated) assert.equal(agent.withinQuota(one.now), true);
        const before = agent.state;
        const found = agent.decide(one.event, row, one.now, one.eligible);
        assert.deepEqual([found.modelVersion, found.slotDue, found.repeated], [one.version, one.due, one.repeated]);
        if (found.arm !== one.arm || found.billionths !== one.billionths) {
          assert.ok(tied(EdgeAgent.resumed(terms, key, before, agent.shared), row, one.eligible, one, found), `call ${number}`);
          ties += 1;
          agent.correct(one.event, one.arm, one.billionths);
        }
      }
    });
    assert.ok(ties <= 2, `expected at most 2 ties of floats, got ${ties}`);
    const { allowance, open, answered, own, resolved, candidates } = agent.state;
    assert.deepEqual(resolved.map(({ slot, index }) => [slot, index]), life.resolved);
    assert.deepEqual(candidates.map(({ slot, count }) => [slot, count]).sort(), life.candidates);
    assert.deepEqual(Object.values(allowance).slice(0, 7), life.allowance);
    assert.deepEqual([allowance.paid, allowance.life], [1e6 * allowance.due, 1e6 * life.terms.lifetime_slots]);
    assert.deepEqual(open.map(([event]) => event).sort(), life.open);
    assert.deepEqual(answered.map(([event]) => event), life.answered);
    const steps = Buffer.from(life.steps, "base64");
    assert.deepEqual(Buffer.from(own.steps.dump()).subarray(0, steps.length), steps);
    life.scores.forEach((scores, place) => near(agent.scores(bytes(golden.contexts[place].row)), scores, `context ${place}`));
  });
}

/** A copy of a state that shares no object with it, except the model. */
function structuredCloneOf(state) {
  const own = state.own && { base: state.own.base, steps: state.own.steps };
  return { ...structuredClone({ ...state, own: null }), own };
}

test("halves are rounded to the even number, as Python rounds them", () => {
  assert.deepEqual([0.5, 1.5, 2.5, 2.4999, -0.5, -1.5].map(round), [0, 2, 2, 2, 0, -2]);
});

test("a renewed slot begins when its time has come, not before", async () => {
  const terms = { ...golden.agreement.terms, after_interactions: 2, lifetime_slots: 2, renew_ms: 1000 };
  const agent = new EdgeAgent(agreementOf(terms), await Key.drawn());
  const { row } = layout.schema.encode({});
  const due = [0, 10, 500, 1009, 1010, 1011].map((now) => agent.decide(`e${now}`, row, now).slotDue);
  assert.deepEqual(due, [false, true, false, false, false, true]);
});

test("an agreement whose items have names, and so may have caps and pins, is refused", () => {
  const named = (canonical) => canonical.replace('"named_items":false', '"named_items":true');
  assert.throws(() => agreementOf(golden.agreement.terms, named), /without caps and pins/);
  assert.ok(agreementOf(golden.agreement.terms));
});

test("feedback that is none of the user's", async () => {
  const agent = new EdgeAgent(agreement, await Key.drawn());
  const { row } = layout.schema.encode({});
  agent.decide("a", row, 0);
  for (const call of [
    () => agent.shown("b", 0),
    () => agent.shown("a", 6),
    () => agent.shown("a", 0.5),
    () => agent.rewarded("a", Number.NaN),
    () => agent.rewarded("a", 1.01),
    () => agent.rewarded("a", "1"),
    () => agent.takeSlot(0),
    () => agent.decide("c", row, 0, Array(6).fill(false)),
  ]) {
    assert.throws(call, EdgeError);
  }
  assert.equal(agent.allowance.decided, 1);
});

function agreementOf(terms, changed = (canonical) => canonical) {
  const { lifetime_slots } = terms;
  const { sealing, signing_key, slot, layout } = golden.agreement;
  const canonical = changed(settings("golden", 1, layout, terms, slot));
  const configuration = digestOf(canonical, ...[sealing.public_key, sealing.vouch_key, signing_key].map((key) => bytes(key)));
  const promise = {
    ...golden.agreement.promise, lifetime_slots, epsilon_micro: 1e6 * lifetime_slots, exchange_epsilon_micro: 2e6 * lifetime_slots,
    delta_units: String(2n ** 60n), exchange_delta_units: String(2n ** 60n),
  };
  return new Agreement({ ...golden.agreement, canonical, configuration, terms, promise });
}
