// The client against a running gateway; HUSHSTREAM_GATEWAY is its address, HUSHSTREAM_CONVERSATION names what it
// serves.

import assert from "node:assert/strict";
import test from "node:test";

import { DecisionClient, ProblemError, RatingClient, RecordClient, isProblem } from "../dist/index.js";

const url = process.env.HUSHSTREAM_GATEWAY;
const conversation = process.env.HUSHSTREAM_CONVERSATION;

// While the learner starts, the gateway answers `no-answer`, and the client repeats the request.
const PATIENT = { url, timeoutMs: 150_000, attemptMs: 60_000, retries: 50 };

function only(name) {
  if (!url) return { skip: "no gateway runs: HUSHSTREAM_GATEWAY is not set" };
  return conversation === name ? {} : { skip: `this gateway serves ${conversation}` };
}

test("decide, shown, reward", only("decisions"), async () => {
  const client = new DecisionClient(PATIENT);
  const { items } = await client.items();
  assert.equal(items.length, 3);
  assert.equal((await client.schema()).conversation, "decisions");
  const asked = { event_id: "node-1", user: "ann", context: [0.7, 0.2, 0.1] };
  const found = await client.decide(asked);
  assert.equal(found.event_id, "node-1");
  assert.equal(found.logged, true);
  assert.deepEqual(await client.decide(asked), found);
  await assert.rejects(client.decide({ ...asked, user: "bob" }), (error) => {
    assert.ok(error instanceof ProblemError);
    return error.code === "event-conflict" && error.status === 409;
  });
  await assert.rejects(client.decide({ ...asked, event_id: "node-2", context: [1] }), { code: "bad-context" });
  assert.deepEqual(await client.shown({ event_id: "node-1" }), { logged: true });
  assert.deepEqual(await client.reward({ event_id: "node-1", reward: 1 }), { logged: true });
  const answers = await client.decideBatch([
    { ...asked, event_id: "node-3" },
    { ...asked, event_id: "node-4", baseline: 99 },
  ]);
  assert.equal(isProblem(answers[0]), false);
  assert.equal(isProblem(answers[1]) && answers[1].code, "unknown-item");
  await assert.rejects(client.decide({ ...asked, event_id: "" }), (error) => {
    assert.equal(error.code, "invalid-request");
    assert.equal(error.problem.errors[0].pointer, "/event_id");
    return true;
  });
});

test("an answer that is not in the log says so", only("baseline"), async () => {
  const client = new DecisionClient({ url });
  const asked = { event_id: "alone-1", user: "ann", context: [0.7, 0.2, 0.1], baseline: 2 };
  const found = await client.decide(asked);
  assert.deepEqual([found.logged, found.item, found.propensity], [false, 2, null]);
  await assert.rejects(client.reward({ event_id: "alone-1", reward: 1 }), { code: "not-logged" });
});

test("predict and label records", only("records"), async () => {
  const client = new RecordClient(PATIENT);
  const asked = { event_id: "node-1", user: "ann", node: 0, indices: [1], values: [0.5] };
  const found = await client.predict(asked);
  assert.equal(found.logged, true);
  assert.ok([1, -1].includes(found.label));
  assert.deepEqual(await client.label({ event_id: "node-1", label: 1 }), { logged: true });
});

test("rate and predict ratings", only("ratings"), async () => {
  const client = new RatingClient(PATIENT);
  assert.deepEqual(await client.rate({ user: "ann", items: [0, 2], ratings: [5, 1] }), { logged: true });
  const found = await client.predict({ event_id: "node-1", user: "ann", items: [1, 2] });
  assert.deepEqual([found.logged, found.values.length], [true, 2]);
});
