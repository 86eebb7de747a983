// Devices of ratings: they must repeat the results of the Python agent (ratings_golden.py); what they keep, what leaves
// and when.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { BadState, EdgeError, RatingAgreement, RatingDevice, Refused } from "../dist/ratings.js";
import { Key } from "../dist/key.js";
import { unseen } from "../dist/device/model.js";
import { fileMark, fileStore } from "../dist/node.js";
import { slotOf } from "../dist/ratings/making.js";
import { byItem, ratedAlso } from "../dist/ratings/rated.js";
import { firstVersion, takeVersion } from "../dist/ratings/rounds.js";
import { predicted } from "../dist/ratings/solving.js";
import { blake2b } from "../dist/blake2b.js";
import { joined, littleEndian, utf8 } from "../dist/encoding.js";
import { canonicalOf } from "../dist/ratings/agreement.js";
import { Gateway, hex, memory, opened, pairOf } from "./gateway.mjs";

const golden = JSON.parse(await readFile(new URL("ratings.json", import.meta.url), "utf8"));
const bytes = (text, form) => Uint8Array.from(Buffer.from(text, form));
const sealing = { keys: { sealing: pairOf("x25519", bytes(golden.sealing, "hex")) } };
const HOUR = 3_600_000;
const [films] = golden.deployments;

/** The versions of a deployment, the first one before any model. */
async function versions(agreement, { models }) {
  const taken = await Promise.all(models.map((body) => takeVersion(agreement, unseen(agreement), bytes(body, "base64"), null, golden.now)));
  return [firstVersion(agreement), ...taken.map(({ version }) => version)];
}

/** An agreement with other settings, under their digest, and with the promise that it had. */
function restated(agreement, changes) {
  const settings = { ...agreement.settings, ...changes };
  const features = new Uint8Array(Float64Array.from(agreement.features.flat()).buffer);
  const keys = [agreement.sealing.public_key, agreement.sealing.vouch_key, agreement.signing_key].map((one) => bytes(one, "hex"));
  const plain = utf8(canonicalOf(settings));
  const said = joined([littleEndian(plain.length), plain, littleEndian(features.length), features, ...keys]);
  return { ...agreement, deployment: settings.deployment, settings, configuration: hex(blake2b(said, { person: "hush-config" })) };
}

/** A device with its own clock and gateway. */
function placed(more = {}) {
  const gateway = new Gateway(null);
  const { store, mark } = memory();
  const clock = { now: golden.now - 10 * HOUR };
  const options = {
    agreement: films.agreement, url: "http://gateway.test/", store, mark, fetch: gateway.fetch, now: () => clock.now,
    random: () => 0.5, ...more,
  };
  return { gateway, store, mark, clock, open: (other) => RatingDevice.open({ ...options, ...other }) };
}

function offered(number) {
  const body = bytes(films.models[number - 1], "base64");
  return { body, tag: tagOf(body) };
}

/** The entity tag that follows from a body. */
function tagOf(body) {
  const size = new DataView(body.buffer, body.byteOffset).getUint32(8, true);
  const said = JSON.parse(new TextDecoder().decode(body.subarray(12, 12 + size)));
  const head = body.subarray(0, body.length - said.content_bytes);
  return `"${createHash("sha256").update(head).digest("hex").slice(0, 32)}"`;
}

function keyOf({ contents }) {
  return bytes(JSON.parse(new TextDecoder().decode(contents.get("state"))).key.base64, "base64");
}

for (const deployment of golden.deployments) {
  test(`slots, ids and predictions of ${deployment.agreement.deployment} are the Python agent's`, async () => {
    const agreement = new RatingAgreement(deployment.agreement);
    const all = await versions(agreement, deployment);
    assert.deepEqual(all.map(({ asked }) => asked.kind), ["items", "pairs", "factors"]);
    deployment.prices.forEach((price, round) => assert.ok(Math.abs(agreement.priceFrom(round) - price) <= 1));
    for (const user of deployment.users) {
      const key = await Key.of(bytes(user.key, "hex"));
      const salt = new DataView((await key.prf("bgt-salt")).buffer).getBigUint64(0, true);
      const own = byItem(agreement.settings, ratedAlso(agreement.settings, [], user.items, user.ratings));
      for (const [number, { asked, model }] of all.entries()) {
        const id = (await key.prf("bgt-slot", number)).slice(0, 16);
        assert.deepEqual([hex(id), hex(slotOf(agreement, own, asked, salt))], user.slots[number], `${own.items.length} ratings, ${number}`);
        const found = predicted(agreement, own, model, deployment.users[5].items);
        found.forEach((one, at) => {
          const expected = user.predicted[number][deployment.users[5].items[at]];
          assert.ok(Math.abs(one - expected) <= golden.margin * Math.max(1, Math.abs(expected)), `${one} and ${expected}`);
        });
      }
    }
  });
}

test("an agreement that does not have its digest is refused", () => {
  const { agreement } = films;
  const changed = [
    { settings: { ...agreement.settings, items: 25 } },
    { settings: { ...agreement.settings, scale: { ...agreement.settings.scale, lowest: 2 } } },
    { configuration: "00".repeat(16) },
    { signing_key: "09".repeat(32) },
    { system: "p2b" },
    { deployment: "other" },
    { features: [[1]] },
    { slot: { ...agreement.slot, delay_ms: 1 } },
  ];
  for (const one of changed) assert.throws(() => new RatingAgreement({ ...agreement, ...one }), Refused, JSON.stringify(one));
});

test("a delay of half a millisecond is rounded as Python rounds it", () => {
  const { agreement } = golden.deployments[1];
  for (const [seconds, delay, good] of [[0.0125, 12, true], [0.0135, 14, true], [0.0125, 11, false]]) {
    const file = { ...restated(agreement, { settle_seconds: seconds }), slot: { ...agreement.slot, delay_ms: delay } };
    if (good) assert.equal(new RatingAgreement(file).slot.delay_ms, delay);
    else assert.throws(() => new RatingAgreement(file), /figures of its settings/);
  }
});

test("a device answers each round once, with what the Python agent gives for its key, and predicts by the signed model", async () => {
  const { gateway, store, clock, open } = placed();
  const device = await open();
  const user = films.users[4];
  await device.rate(user.items, user.ratings);
  const key = await Key.of(keyOf(store));
  const salt = new DataView((await key.prf("bgt-salt")).buffer).getBigUint64(0, true);
  const agreement = new RatingAgreement(films.agreement);
  const own = byItem(agreement.settings, ratedAlso(agreement.settings, [], user.items, user.ratings));
  const all = await versions(agreement, films);
  for (const number of [0, 1, 2]) {
    const before = gateway.slots.length;
    const { nextMs } = await device.sync();
    if (number) assert.equal(device.status.modelVersion, number, "taken");
    assert.equal(gateway.slots.length, before, "a slot that a model asks for leaves by a later call");
    assert.ok(nextMs >= clock.now && nextMs <= clock.now + HOUR);
    clock.now = nextMs;
    assert.equal((await device.sync()).handedIn, 1);
    gateway.model = number < 2 ? offered(number + 1) : null;
    const { body } = gateway.slots.at(-1);
    assert.equal(body.length, films.agreement.slot.body_bytes);
    assert.equal(body[17], number, "its round");
    assert.equal(hex(body.slice(1, 17)), hex((await key.prf("bgt-slot", number)).slice(0, 16)));
    assert.deepEqual(await opened(sealing, body), slotOf(agreement, own, all[number].asked, salt));
  }
  assert.equal(device.status.answered, 3);
  const found = await device.predict([7, 9]);
  assert.ok(found.every((one) => one >= 1 && one <= 5));
});

test("a slot is written before it leaves, with its mark; after a crash the same bytes are sent", async () => {
  const { gateway, store, mark, clock, open } = placed();
  const device = await open();
  await device.rate([1, 2], [5, 1]);
  await device.sync();
  clock.now += HOUR;
  gateway.answers = [null];
  gateway.before = () => {
    const state = JSON.parse(new TextDecoder().decode(store.contents.get("state")));
    assert.equal(state.answered, 1);
    assert.ok(state.owed.body.base64.length > 0);
    const [life, rest] = films.prices;
    assert.deepEqual(JSON.parse(mark.text), { format: 1, answered: 1, paid: life - rest, life });
  };
  assert.equal((await device.sync()).handedIn, 0);
  const again = await open();
  await again.rate([3], [3]);
  clock.now += HOUR;
  assert.equal((await again.sync()).handedIn, 1);
  assert.deepEqual(gateway.slots[0].body, gateway.slots[1].body);
  clock.now += HOUR;
  await again.sync();
  assert.equal(gateway.slots.length, 2);
});

test("a cleared state, an older one, and forgetting give no second slot of a round", async () => {
  const { gateway, store, clock, open } = placed();
  const device = await open();
  await device.rate([1, 2], [5, 1]);
  await device.sync();
  const older = new Map(store.contents);
  clock.now += HOUR;
  await device.sync();
  await device.forget();
  for (const contents of [new Map(), older, new Map(store.contents)]) {
    store.contents = contents;
    for (const one of [device, await open()]) {
      await one.rate([4], [2]);
      await one.sync();
      clock.now += 2 * HOUR;
      await one.sync();
      assert.equal(one.status.answered, 1);
    }
  }
  assert.equal(gateway.slots.length, 1);
});

test("only models that the aggregator signed for this agreement are accepted, and never an older version", async () => {
  const agreement = new RatingAgreement(films.agreement);
  const body = bytes(films.models[0], "base64");
  const take = (content, seen = unseen(agreement), now = golden.now) => takeVersion(agreement, seen, content, null, now);
  const { seen } = await takeVersion(agreement, unseen(agreement), bytes(films.models[1], "base64"), null, golden.now);
  await assert.rejects(take(body, seen), Refused);
  await assert.rejects(take(body, unseen(agreement), golden.now + 1000), Refused);
  await assert.rejects(take(body.slice(0, -1)), Refused);
  for (const place of [20, 200, body.length - 1]) {
    const broken = body.slice();
    broken[place] ^= 1;
    await assert.rejects(take(broken), Refused, String(place));
  }
  const other = new RatingAgreement(golden.deployments[1].agreement);
  await assert.rejects(takeVersion(other, unseen(other), body, null, golden.now), Refused);
});

test("a refused model leaves the device with the one that it has; a slot of another round waits longer each time", async () => {
  const { gateway, clock, open } = placed();
  const device = await open();
  await device.sync();
  clock.now += HOUR;
  gateway.model = { body: bytes(films.models[0], "base64").fill(1, 300, 301), tag: '"x"' };
  gateway.answers = [{ status: 422, code: "stale-period" }, { status: 422, code: "stale-period" }];
  const first = await device.sync();
  assert.match(first.refused, /^model: /);
  assert.equal(device.status.modelVersion, 0);
  assert.equal(first.nextMs, clock.now + 1000);
  await device.sync();
  assert.equal(gateway.slots.length, 1, "it waits");
  clock.now = first.nextMs;
  assert.equal((await device.sync()).nextMs, clock.now + 2000);
  clock.now += 2000;
  assert.equal((await device.sync()).handedIn, 1);
  assert.deepEqual(gateway.slots[0].body, gateway.slots[2].body);
});

test("nothing is read or written between two requests of a round", async () => {
  const { gateway, store, clock, open } = placed();
  const device = await open();
  await device.sync();
  clock.now += HOUR;
  gateway.model = offered(1);
  const done = [];
  const [{ fetch }, { read, write }] = [gateway, store];
  Object.assign(store, {
    read: (name) => (done.push("read"), read(name)),
    write: (name, content) => (done.push("write"), write(name, content)),
  });
  const noting = await open({ fetch: (url, request) => (done.push(new URL(url).pathname), fetch(url, request)) });
  assert.deepEqual([(await noting.sync()).handedIn, noting.status.modelVersion], [1, 1]);
  const first = done.indexOf("/v1/slots");
  assert.deepEqual(done.slice(first, done.lastIndexOf("/v1/model") + 1), ["/v1/slots", "/v1/model"]);
  assert.ok(done.slice(0, first).includes("write"));
});

test("two pages share one state, and send the same bytes", async () => {
  const { gateway, clock, open } = placed();
  const pages = [await open(), await open()];
  await Promise.all(pages.map((page, at) => page.rate([at], [3])));
  await Promise.all(pages.map((page) => page.sync()));
  clock.now += HOUR;
  await Promise.all(pages.map((page) => page.sync()));
  await pages[0].sync();
  await pages[1].sync();
  assert.equal(new Set(gateway.slots.map(({ body }) => hex(body))).size, 1);
  for (const page of pages) {
    await page.predict([0]);
    assert.deepEqual([page.status.rated, page.status.answered, page.status.waiting], [2, 1, false]);
  }
});

test("ratings off the scale, unknown items and damaged states are refused completely", async () => {
  const { store, open } = placed();
  const device = await open();
  for (const [items, ratings] of [[[24], [1]], [[-1], [1]], [[0.5], [1]], [[0], [5.1]], [[0], [NaN]], [[0], ["5"]], [[0, 1], [1]]]) {
    await assert.rejects(device.rate(items, ratings), EdgeError);
  }
  await assert.rejects(device.predict([24]), EdgeError);
  assert.equal(device.status.rated, 0);
  const content = store.contents.get("state");
  for (const broken of [content.slice(0, 40), new TextEncoder().encode("{}"), new TextEncoder().encode('{"format":1}')]) {
    store.contents.set("state", broken);
    await assert.rejects(open(), BadState);
  }
});

test("another agreement is accepted when it is requested, and what was spent stays spent", async () => {
  const { gateway, clock, open } = placed();
  const device = await open();
  await device.rate([1], [5]);
  await device.sync();
  clock.now += HOUR;
  await device.sync();
  const other = (name, release = {}) => restated(films.agreement, { deployment: name, release: { ...films.agreement.settings.release, ...release } });
  await assert.rejects(open({ agreement: other("songs") }), /agreeAnew/);
  // The same life, with its shares moved to the rounds that are left: each agreement would be paid at its largest round.
  const moved = other("songs", { shares: [0.01, 0.01, 0.98] });
  await assert.rejects(open({ agreement: moved, agreeAnew: true }), /rest of the life agreed to/);
  const dear = other("songs", { epsilon: 20 });
  assert.throws(() => new RatingAgreement(dear), /privacy cost of its settings/, "a stated price is not believed");
  const free = other("songs", { epochs: 0 });
  const promise = { ...free.promise, epsilon_micro: 0, exchange_epsilon_micro: 0 };
  assert.throws(() => new RatingAgreement({ ...free, promise }), /1 to 1000 epochs/, "slots that cost nothing");
  // Rounds without a share would be free.
  for (const shares of [[1], [0.5, 0.5], [0.98, 0.02, 0], ["0.3", "0.3", "0.4"]]) {
    assert.throws(() => new RatingAgreement(other("songs", { shares })), /three shares/, JSON.stringify(shares));
  }
  const anew = await open({ agreement: other("songs"), agreeAnew: true });
  assert.deepEqual([anew.status.answered, anew.status.rated], [1, 0]);
  clock.now += HOUR;
  await anew.sync();
  assert.equal(gateway.slots.length, 1);
});

test("three agreements of one price, each with another large share, are paid as one life", async () => {
  const shared = (shares) => restated(films.agreement, { release: { ...films.agreement.settings.release, shares } });
  const [first, second, third] = [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]].map(shared);
  const { clock, open } = placed({ agreement: first });
  const device = await open();
  await device.rate([1], [5]);
  await device.sync();
  clock.now += HOUR;
  await device.sync();
  assert.equal(device.status.answered, 1);
  for (const agreement of [second, third]) {
    await assert.rejects(open({ agreement, agreeAnew: true }), /rest of the life agreed to/);
  }
});

test("in Node a state is stored in files", async () => {
  const folder = await mkdtemp(join(tmpdir(), "ratings-"));
  try {
    const options = { store: fileStore(join(folder, "state")), mark: fileMark(join(folder, "mark")) };
    const { open } = placed();
    await (await open(options)).rate([3], [4]);
    assert.equal((await open({ store: fileStore(join(folder, "state")), mark: options.mark })).status.rated, 1);
  } finally {
    await rm(folder, { recursive: true });
  }
});
