// An application of the retired personaliser, as its SDK's own page has it: the endpoint and the key are all that changed.

const assert = require("node:assert/strict");
const { PersonalizerClient } = require("@azure/cognitiveservices-personalizer");
const { CognitiveServicesCredentials } = require("@azure/ms-rest-azure-js");

const actions = [
  { id: "news", features: [{ type: "News" }] },
  { id: "sports", features: [{ type: "Sports" }] },
  { id: "films", features: [{ type: "Films" }] },
];

async function refused(promise) {
  const error = await promise.then(
    () => assert.fail("it was not refused"),
    (found) => found,
  );
  return [error.statusCode, error.body && error.body.error && error.body.error.code];
}

async function main() {
  const endpoint = process.env.HUSHSTREAM_GATEWAY;
  const client = new PersonalizerClient(new CognitiveServicesCredentials(process.env.KEY), endpoint);
  const request = {
    contextFeatures: [{ User: { id: "ann", country: "fr", age: 31 } }, { weather: "rain" }],
    actions,
    excludedActions: ["sports"],
    eventId: "node-1",
  };
  const found = await client.rank(request);
  assert.equal(found.eventId, "node-1");
  assert.ok(["news", "films"].includes(found.rewardActionId));
  assert.deepEqual(found.ranking.map((one) => one.id).sort(), ["films", "news", "sports"]);
  assert.equal(found.ranking[0].id, found.rewardActionId);
  assert.equal(found.ranking[1].id, "sports");
  assert.equal(found.ranking[1].probability, 0);
  await client.events.reward("node-1", { value: 1 });
  const later = await client.rank({ ...request, eventId: "node-2", deferActivation: true });
  assert.equal(later.eventId, "node-2");
  await client.events.activate("node-2");
  await client.events.reward("node-2", { value: -1 });
  const unnamed = await client.rank({ contextFeatures: request.contextFeatures, actions });
  assert.match(unnamed.eventId, /^[0-9a-f-]{36}$/);
  assert.deepEqual(await refused(client.events.reward("nobody", { value: 1 })), [404, "ResourceNotFound"]);
  const other = { ...request, eventId: "node-3", actions: [{ id: "cars", features: [{}] }] };
  assert.deepEqual(await refused(client.rank(other)), [400, "BadRequest"]);
  const stranger = new PersonalizerClient(new CognitiveServicesCredentials("x".repeat(32)), endpoint);
  assert.deepEqual(await refused(stranger.rank(request)), [401, "Unauthorized"]);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
