// The device: what it keeps, what leaves and when, and which models it accepts.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { Agreement, BadState, EdgeDevice, EdgeError, Refused, unpackSlot } from "../dist/index.js";
import { seal } from "../dist/device/hpke.js";
import { unseen } from "../dist/device/model.js";
import { takeModel } from "../dist/device/taking.js";
import { fileMark, fileStore } from "../dist/node.js";
import { agreed, Gateway, hex, memory, opened, signed } from "./gateway.mjs";

const MINUTE = 60_000;

/** A device with its own clock and gateway. */
async function placed(changes = {}) {
  const world = await agreed(changes.agreement);
  const gateway = new Gateway(world);
  const { store, mark } = memory();
  const clock = { now: 1_800_000_000_000 };
  const options = {
    agreement: world.file,
    url: "http://gateway.test/",
    store,
    mark,
    fetch: gateway.fetch,
    now: () => clock.now,
    random: () => 0.5,
    ...changes.options,
  };
  return { world, gateway, store, mark, clock, options, open: (more) => EdgeDevice.open({ ...options, ...more }) };
}

/** Make `count` decisions, and reward some of them. */
async function live(device, count, { clicks = false, name = "e" } = {}) {
  for (let number = 0; number < count; number += 1) {
    const { learned } = await device.decide(`${name}${number}`, { country: "se", age: 20 + number });
    if (!learned) continue;
    await device.shown(`${name}${number}`);
    if (clicks) await device.reward(`${name}${number}`, 1);
  }
}

test("nothing is read or written between two requests of a round", async () => {
  const { world, gateway, store, clock, open } = await placed({ agreement: { terms: { lifetime_slots: 2 } } });
  const device = await open();
  await live(device, 20);
  gateway.model = await signed(world);
  clock.now += 3 * 60 * MINUTE;
  await device.flush();
  const done = [];
  const [{ fetch }, { read, write }] = [gateway, store];
  Object.assign(store, {
    read: (name) => (done.push("read"), read(name)),
    write: (name, content) => (done.push("write"), write(name, content)),
  });
  const noting = await open({ fetch: (url, request) => (done.push(new URL(url).pathname), fetch(url, request)) });
  const { handedIn, model } = await noting.sync();
  assert.deepEqual([handedIn, model], [2, 1]);
  const [first, last] = [done.indexOf("/v1/slots"), done.lastIndexOf("/v1/model")];
  assert.deepEqual(done.slice(first, last + 1), ["/v1/slots", "/v1/slots", "/v1/model"]);
  assert.ok(done.slice(0, first).includes("write") && done.slice(last).includes("write"));
});

test("HPKE gives what RFC 9180 gives (A.1.1)", async () => {
  const bytes = (text) => Uint8Array.from(Buffer.from(text, "hex"));
  const shown = bytes("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431");
  const secret = bytes("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736");
  const usual = { name: "X25519" };
  const keys = {
    privateKey: await crypto.subtle.importKey(
      "pkcs8",
      Buffer.concat([Buffer.from("302e020100300506032b656e04220420", "hex"), secret]),
      usual,
      false,
      ["deriveBits"],
    ),
    publicKey: await crypto.subtle.importKey("raw", shown, usual, true, []),
  };
  const recipient = bytes("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d");
  const message = {
    content: bytes("4265617574792069732074727574682c20747275746820626561757479"),
    info: bytes("4f6465206f6e2061204772656369616e2055726e"),
    aad: bytes("436f756e742d30"),
  };
  const expected =
    "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a";
  assert.equal(hex(await seal(recipient, message, keys)), hex(shown) + expected);
});

for (const clicks of [false, true]) {
  test(`one padded slot leaves, ${clicks ? "with a click" : "without one"}, at the drawn time`, async () => {
    const { world, gateway, clock, open } = await placed();
    const device = await open();
    await live(device, 12, { clicks });
    assert.deepEqual([device.status.due, device.status.sent], [1, 0]);
    const { nextMs } = await device.sync();
    assert.equal(nextMs, clock.now + 30 * MINUTE + 30 * MINUTE);
    assert.equal(gateway.slots.length, 0);
    clock.now = nextMs - 1;
    assert.equal((await device.sync()).handedIn, 0);
    clock.now = nextMs;
    assert.equal((await device.sync()).handedIn, 1);
    clock.now += 1000 * MINUTE;
    await live(device, 30, { clicks, name: "later" });
    clock.now += 1000 * MINUTE;
    assert.equal((await device.sync()).handedIn, 0);
    assert.equal(gateway.slots.length, 1);
    const [{ body, headers }] = gateway.slots;
    assert.equal(body.length, world.file.slot.body_bytes);
    assert.deepEqual(Object.keys(headers), ["Content-Type"]);
    const report = unpackSlot(new Agreement(world.file).layout, await opened(world, body));
    assert.equal(report.level, clicks ? 1 : 0);
  });
}

test("a state is written before its slot leaves, and the same bytes are sent again", async () => {
  const { gateway, store, clock, open } = await placed();
  const device = await open();
  await live(device, 10);
  clock.now += 100 * MINUTE;
  gateway.before = () => {
    // The store as after a crash at this moment: its state has this slot as taken, with these bytes.
    gateway.kept = store.contents.get("state");
  };
  gateway.answers.push(null, 503);
  assert.equal((await device.sync()).handedIn, 0);
  store.contents.set("state", gateway.kept);
  const again = await open();
  assert.deepEqual([again.status.due, again.status.sent, again.status.waiting], [1, 1, 1]);
  for (let round = 0; round < 3; round += 1) {
    await again.sync();
    clock.now += MINUTE;
  }
  assert.equal(gateway.slots.length, 3);
  assert.equal(new Set(gateway.slots.map(({ body }) => hex(body))).size, 1);
  assert.equal(again.status.waiting, 0);
});

test("after its state is cleared, a device goes on from its mark and sends no second slot", async () => {
  const { gateway, store, clock, open } = await placed();
  const device = await open();
  await live(device, 10);
  clock.now += 100 * MINUTE;
  await device.sync();
  store.contents.clear();
  const cleared = await open();
  await live(cleared, 40);
  clock.now += 1000 * MINUTE;
  await cleared.sync();
  assert.equal(gateway.slots.length, 1);
});

test("a restored state sends no second slot: by its mark, and without it under the same id", async () => {
  const { gateway, store, mark, clock, open } = await placed();
  const device = await open();
  await live(device, 5);
  await device.flush();
  const older = new Map(store.contents);
  const olderMark = mark.text;
  await live(device, 5, { name: "f" });
  clock.now += 100 * MINUTE;
  await device.sync();
  const restore = () => {
    store.contents.clear();
    for (const [name, content] of older) store.contents.set(name, content);
  };
  restore();
  const marked = await open();
  await live(marked, 30, { clicks: true, name: "g" });
  clock.now += 1000 * MINUTE;
  await marked.sync();
  assert.equal(gateway.slots.length, 1);
  restore();
  mark.text = olderMark;
  const unmarked = await open();
  await live(unmarked, 30, { clicks: true, name: "h" });
  clock.now += 1000 * MINUTE;
  await unmarked.sync();
  const ids = gateway.slots.map(({ body }) => hex(body.subarray(1, 17)));
  assert.equal(ids.length, 2);
  assert.equal(ids[0], ids[1]);
});

/** A store and a mark on the same contents, for a device that is killed at the write with this number. */
function stopsAt({ store, mark }, number) {
  const never = new Promise(() => undefined);
  let [writes, stop] = [0, () => undefined];
  const stopped = new Promise((resolve) => (stop = resolve));
  const alive = (work) => {
    if (writes < number) return work();
    stop();
    return never;
  };
  const written = (work) => {
    writes += 1;
    return alive(work);
  };
  return {
    alive,
    stopped,
    isOver: () => writes >= number,
    store: {
      ...memory().store,
      read: (name) => alive(() => store.read(name)),
      write: (name, content) => written(() => store.write(name, content)),
      remove: (name) => written(() => store.remove(name)),
    },
    mark: { read: () => alive(mark.read), write: (text) => written(() => mark.write(text)) },
  };
}

test("a device killed between any two writes hands in one slot with one content", async () => {
  let [number, isOver, resent] = [0, true, 0];
  for (; isOver; number += 1) {
    const { gateway, world, clock, open, store, mark } = await placed();
    gateway.model = await signed(world, { version: 1 });
    const killed = stopsAt({ store, mark }, number + 1);
    const life = async () => {
      const fetch = (...request) => killed.alive(() => gateway.fetch(...request));
      const device = await open({ store: killed.store, mark: killed.mark, fetch });
      for (let part = 0; part < 4; part += 1) {
        await live(device, 3, { clicks: true, name: `${part}-` });
        await device.flush();
        clock.now += 100 * MINUTE;
        await device.sync();
      }
    };
    await Promise.race([life(), killed.stopped]);
    isOver = killed.isOver();
    const again = await open();
    await live(again, 40, { clicks: true, name: "later" });
    clock.now += 1000 * MINUTE;
    await again.sync();
    const bodies = gateway.slots.map(({ body }) => hex(body));
    assert.equal(new Set(bodies).size, 1, `killed at writing ${number + 1}: ${bodies.length} slots`);
    if (bodies.length > 1) resent += 1;
  }
  assert.ok(number > 12, `${number} writings`);
  assert.ok(resent > 0, "the crash between a slot and the note that it was handed in");
});

test("what was not written when a device is killed is forgotten, and nothing else", async () => {
  const { open, store, mark } = await placed();
  const device = await open();
  await live(device, 4);
  await device.flush();
  await live(device, 3, { name: "lost" });
  const found = memory();
  for (const [name, content] of store.contents) found.store.contents.set(name, content);
  found.mark.text = mark.text;
  const again = await open(found);
  assert.deepEqual([device.status.decided, again.status.decided], [7, 4]);
  await assert.rejects(again.shown("lost0"), EdgeError);
  assert.equal(await again.shown("e0"), "repeated_feedback");
});

test("calls are written in the background, many with one write", async () => {
  const { open, store } = await placed();
  let writings = 0;
  const counted = { ...store, write: (...content) => (writings += 1) && store.write(...content) };
  const device = await open({ store: counted });
  const before = store.contents.get("state");
  await live(device, 9);
  assert.deepEqual([writings, store.contents.get("state")], [1, before]);
  while (writings < 2) await new Promise((done) => setTimeout(done, 10));
  await device.flush();
  assert.equal(writings, 2);
});

test("if a write in the background fails, the next call throws, and the store counts", async () => {
  const { open, store } = await placed();
  let isFull = false;
  const write = async (...content) => {
    if (isFull) throw new EdgeError("storage: full");
    await store.write(...content);
  };
  const device = await open({ store: { ...store, write } });
  await live(device, 2);
  await device.flush();
  isFull = true;
  await live(device, 3, { name: "lost" });
  await assert.rejects(device.flush(), /full/);
  assert.equal((await device.decide("next", {})).learned, true);
  await new Promise((done) => setTimeout(done, 150));
  await assert.rejects(device.shown("next"), /full/);
  isFull = false;
  await device.decide("after", {});
  assert.equal(device.status.decided, 3);
});

test("a state that is cleared while a page uses it is not written back", async () => {
  const { open, store, gateway, clock } = await placed();
  const device = await open();
  await live(device, 12);
  await device.flush();
  const known = JSON.parse(new TextDecoder().decode(store.contents.get("state"))).key.base64;
  await device.decide("pending", {});
  store.contents.clear();
  await device.flush();
  clock.now += 100 * MINUTE;
  await device.sync();
  assert.notEqual(JSON.parse(new TextDecoder().decode(store.contents.get("state"))).key.base64, known);
  await live(device, 30, { name: "f" });
  clock.now += 1000 * MINUTE;
  await device.sync();
  assert.equal(gateway.slots.length, 1);
});

test("a slot whose mark could not be written leaves when it is, and clearing the state gives no second one", async () => {
  const { gateway, store, mark, clock, open } = await placed();
  let isFull = false;
  const write = async (text) => {
    if (isFull) throw new EdgeError("storage: full");
    await mark.write(text);
  };
  const device = await open({ mark: { read: mark.read, write } });
  await live(device, 10);
  await device.flush();
  clock.now += 100 * MINUTE;
  isFull = true;
  for (let round = 0; round < 3; round += 1) await assert.rejects(device.sync(), /full/);
  assert.equal(gateway.slots.length, 0);
  isFull = false;
  await device.sync();
  const unmarked = JSON.stringify({ ...JSON.parse(mark.text), sent: 0 });
  assert.equal(gateway.slots.length, 1);
  // As after a crash before the mark was on disk: the state has spent more than the mark, until it is cleared.
  mark.text = unmarked;
  await open();
  store.contents.clear();
  const cleared = await open();
  clock.now += 1000 * MINUTE;
  await cleared.sync();
  assert.equal(gateway.slots.length, 1);
});

test("what another page spent stays spent if the state is restored to the one that this page knows", async () => {
  const { gateway, store, clock, open } = await placed();
  const [one, other] = [await open(), await open()];
  await live(one, 5);
  await one.flush();
  await other.flush();
  const older = new Map(store.contents);
  await live(one, 5, { name: "f" });
  clock.now += 100 * MINUTE;
  await one.sync();
  assert.equal(gateway.slots.length, 1);
  for (const [name, content] of older) store.contents.set(name, content);
  await live(other, 30, { clicks: true, name: "g" });
  clock.now += 1000 * MINUTE;
  await other.sync();
  assert.equal(gateway.slots.length, 1);
});

test("a state and a mark that each say more keep all that either says was spent", async () => {
  const { gateway, mark, clock, open } = await placed({ agreement: { terms: { contexts_per_period: 5 } } });
  const device = await open();
  for (let day = 0; day < 2; day += 1) {
    await live(device, 5, { name: `${day}-` });
    clock.now += 1440 * MINUTE;
  }
  gateway.answers.push(null);
  await device.sync();
  const spent = JSON.parse(mark.text);
  // The clock was set back, so the state's period is the earlier one; the mark of the slot was lost.
  mark.text = JSON.stringify({ ...spent, period: spent.period + 1, sent: 0 });
  const again = await open();
  assert.deepEqual([again.status.due, again.status.sent], [1, 1]);
  clock.now += 1000 * MINUTE;
  await again.sync();
  assert.equal(new Set(gateway.slots.map(({ body }) => hex(body))).size, 1);
});

test("a clock that is set back gives no new quota, and another agreement begins one", async () => {
  const terms = { contexts_per_period: 5 };
  const { mark, store, clock, open } = await placed({ agreement: { terms } });
  const learned = async (device, days, name) => {
    clock.now += days * 1440 * MINUTE;
    const decided = device.status.decided;
    await live(device, 4, { name });
    return device.status.decided - decided;
  };
  const device = await open();
  assert.equal(await learned(device, 0, "first"), 4);
  // The clock is set back, then forward again: one context is left of the newest day's quota.
  assert.equal((await learned(device, -1, "back")) + (await learned(device, 1, "again")), 1);
  assert.equal(await learned(device, -2, "further"), 0);
  await device.flush();
  assert.equal(await learned(await open(), 1, "restarted"), 0);
  const later = await open();
  assert.equal(await learned(later, 2, "next"), 4);
  await later.flush();
  // Longer periods have smaller numbers: the period of the earlier agreement would never end.
  const other = (await agreed({ terms: { ...terms, quota_period_ms: 864_000_000 } }, "other")).file;
  const [state, known, write] = [store.contents.get("state"), mark.text, store.write];
  const crashes = [[state, known]];
  store.write = async (name, content, durable) => {
    // As at a crash before this write, and right after it.
    crashes.push([state, mark.text], [content, mark.text]);
    store.write = write;
    return write.call(store, name, content, durable);
  };
  await open({ agreement: other, agreeAnew: true });
  assert.equal(crashes.length, 3);
  for (const [content, text] of crashes) {
    store.contents.set("state", content);
    mark.text = text;
    assert.equal(await learned(await open({ agreement: other, agreeAnew: true }), 0, "anew"), 4);
  }
});

test("the quota counts before a slot is due, while it waits, and when it has left", async () => {
  const { clock, open } = await placed({ agreement: { terms: { contexts_per_period: 16 } } });
  const first = await open();
  await live(first, 12, { name: "before" });
  assert.equal(first.status.due, 1);
  await live(first, 2, { name: "due" });
  assert.equal(first.status.decided, 14);
  await first.flush();
  const device = await open();
  clock.now = (await device.sync()).nextMs;
  assert.equal((await device.sync()).handedIn, 1);
  await live(device, 4, { name: "sent" });
  assert.equal(device.status.decided, 16);
  clock.now += 1440 * MINUTE;
  await live(device, 40, { name: "next" });
  assert.equal(device.status.decided, 32);
});

test("every slot, and every seal of it, has a key of its own", async () => {
  const { gateway, clock, open } = await placed({ agreement: { terms: { lifetime_slots: 3 } } });
  const device = await open();
  await live(device, 40);
  clock.now += 600 * MINUTE;
  assert.equal((await device.sync()).handedIn, 3);
  const keys = gateway.slots.map(({ body }) => hex(body.slice(41, 73)));
  const message = { content: new Uint8Array(4), info: new Uint8Array(4) };
  const recipient = new Uint8Array(32).fill(9);
  for (let number = 0; number < 2; number += 1) keys.push(hex((await seal(recipient, message)).slice(0, 32)));
  assert.equal(new Set(keys).size, 5);
});

test("a slot owed under one agreement leaves under no other, whatever is cleared or restored in between", async () => {
  const { store, mark, gateway, clock, open } = await placed({ agreement: { epsilon: 0.25, terms: { lifetime_slots: 4 } } });
  const dear = (await agreed({ epsilon: 0.75 }, "dear")).file;
  await (await open()).flush();
  const begun = new Map(store.contents);
  await live(await open(), 10);
  await (await open()).flush();
  const owed = JSON.parse(mark.text);
  assert.deepEqual([owed.due, owed.sent, owed.paid], [1, 0, 250_000]);
  // The mark alone is left: its slot was paid at a third of what it would cost here.
  store.contents.clear();
  await assert.rejects(open({ agreement: dear }), /agreeAnew/);
  const cleared = await open({ agreement: dear, agreeAnew: true });
  clock.now += 1000 * MINUTE;
  await cleared.sync();
  assert.deepEqual([gateway.slots.length, cleared.status.waiting], [0, 0]);
  // A copy from before says that all four slots of the first agreement are left, at a cost of a whole life.
  const [spent, now] = [{ due: 1, sent: 1, paid: 750_000 }, JSON.parse(mark.text)];
  mark.text = JSON.stringify({ ...now, ...spent });
  for (const [name, content] of begun) store.contents.set(name, content);
  await assert.rejects(open({ agreeAnew: true }), /at most 250000 millionths/);
});

test("a state that is cleared while its slot is on its way is not written back", async () => {
  for (const answer of [null, 503, 204, { status: 422, code: "stale-period", date: 1_900_000_000_000 }]) {
    const { gateway, store, clock, open } = await placed();
    const device = await open();
    await live(device, 10);
    clock.now += 100 * MINUTE;
    gateway.before = () => store.contents.clear();
    gateway.answers.push(answer);
    await device.sync();
    gateway.before = () => undefined;
    assert.deepEqual(JSON.parse(new TextDecoder().decode(store.contents.get("state"))).outgoing, []);
    clock.now += 1000 * MINUTE;
    await device.sync();
    assert.equal(gateway.slots.length, 1);
  }
});

test("a state that is cleared while its slot is sealed is not written back, and its slot does not leave", async () => {
  const { gateway, store, clock, open } = await placed();
  const device = await open();
  await live(device, 10);
  await device.flush();
  const { key } = JSON.parse(new TextDecoder().decode(store.contents.get("state")));
  clock.now += 100 * MINUTE;
  let reads = 0;
  const read = async (name) => {
    const found = store.contents.get(name) ?? null;
    // After the read with which the work begins.
    if (++reads === 1) queueMicrotask(() => store.contents.clear());
    return found;
  };
  Object.assign(store, { read });
  await device.sync();
  assert.ok(reads > 2);
  assert.notDeepEqual(JSON.parse(new TextDecoder().decode(store.contents.get("state"))).key, key);
  assert.equal(gateway.slots.length, 0);
  clock.now += 1000 * MINUTE;
  await device.sync();
  assert.equal(gateway.slots.length, 1);
});

test("a slot that another page handed in is not kept by the one that got no answer", async () => {
  const { gateway, clock, open } = await placed();
  const [one, other] = [await open(), await open()];
  await live(one, 10);
  clock.now += 100 * MINUTE;
  let isFirst = true;
  const fetch = async (url, request) => {
    if (request.method !== "POST" || !isFirst) return gateway.fetch(url, request);
    isFirst = false;
    assert.equal((await other.sync()).handedIn, 1);
    throw new TypeError("fetch failed");
  };
  const late = await open({ fetch });
  await late.sync();
  clock.now += 1000 * MINUTE;
  await late.sync();
  assert.deepEqual([gateway.slots.length, late.status.waiting], [1, 0]);
});

test("two pages share one state", async () => {
  const { gateway, clock, open } = await placed();
  const [one, other] = [await open(), await open()];
  for (let number = 0; number < 10; number += 1) await live(number % 2 ? one : other, 1, { name: `p${number}-` });
  assert.equal((await other.decide("p3-0", { country: "fr" })).item, (await one.decide("p3-0", {})).item);
  clock.now += 100 * MINUTE;
  const rounds = await Promise.all([one.sync(), other.sync()]);
  assert.ok(rounds.some(({ handedIn }) => handedIn === 1));
  assert.equal(new Set(gateway.slots.map(({ body }) => hex(body))).size, 1);
});

test("answers of the gateway, as the table of the transport says", async () => {
  for (const [status, code, waiting, sent] of [
    [400, "bad-slot", 1, 1],
    [409, "other-configuration", 0, 1],
    [403, "not-attested", 0, 2],
    [429, "too-many", 0, 2],
    [422, "stale-period", 0, 2],
  ]) {
    const { gateway, clock, open } = await placed();
    const device = await open();
    await live(device, 10);
    clock.now += 100 * MINUTE;
    gateway.answers.push({ status, code, date: clock.now + 5 * 86_400_000 });
    await device.sync();
    clock.now += 100 * MINUTE;
    await device.sync();
    assert.deepEqual([gateway.slots.length, device.status.waiting], [sent, waiting], code);
    assert.equal(device.status.ended, status === 409);
    if (status === 422) {
      const [first, second] = gateway.slots.map(({ body }) => body);
      assert.equal(hex(first.subarray(0, 17)), hex(second.subarray(0, 17)));
      assert.equal(second[17] - first[17], 5);
    }
  }
});

test("a newer model is accepted; an older one, and all that is not as agreed, is refused", async () => {
  const { world, gateway, open, clock } = await placed();
  const device = await open();
  assert.equal((await device.sync()).model, null);
  gateway.model = await signed(world, { version: 3 });
  assert.equal((await device.sync()).model, 3);
  assert.equal((await device.sync()).model, null);
  assert.equal(gateway.asked.at(-1).headers["If-None-Match"], gateway.model.tag);
  const refused = async (changes, more) => {
    gateway.model = await signed(world, { version: 4, ...changes }, more);
    const { model, refused } = await device.sync();
    assert.equal(model, null, JSON.stringify(changes));
    assert.match(refused, /^model: expected/, JSON.stringify(changes));
  };
  await refused({ version: 2 });
  await refused({ version: 3, issued_ms: 1 });
  await refused({ expires_ms: clock.now });
  await refused({ epsilon_micro: 1_000_001 });
  await refused({ delta_units: String(2n ** 37n + 1n) });
  await refused({ configuration: "00".repeat(16) });
  await refused({ deployment: "other" });
  await refused({ layout: "00".repeat(16) });
  await refused({ arms: 2 });
  await refused({ private_as_stated: false });
  await refused({ format: 2 });
  await refused({ more: 1 });
  await refused({ content_sha256: "00".repeat(32) });
  await refused({}, { variance: 0 });
  await refused({}, { variance: Number.NaN });
  await refused({}, { mean: 1e300 });
  await refused({}, { tag: `"${"0".repeat(32)}"` });
  await refused({}, { signer: "other" });
  await refused({}, { flip: 40 });
  await refused({}, { text: (text) => text.replace('"version":4', '"version":4.0') });
  // A statement without signature that is nested as deep as it may be long.
  const deep = `${"[".repeat(30_000)}${"]".repeat(30_000)}`;
  await refused({}, { text: (text) => text.replace('"reward_variance":0.08', `"reward_variance":${deep}`) });
  gateway.model = await signed(world, { version: 4 });
  assert.equal((await device.sync()).model, 4);
  assert.equal((await open()).status.modelVersion, 4);
});

test("keys follow from the agreement's, and no key that was seen may be missing", async () => {
  const { world, gateway, open, clock } = await placed();
  const device = await open();
  const next = { signing: [{ from: 5 }], sealing: [{ from: Math.floor(clock.now / 86_400_000) }] };
  gateway.model = await signed(world, { version: 5 }, next);
  assert.equal((await device.sync()).model, 5);
  gateway.model = await signed(world, { version: 6 });
  assert.match((await device.sync()).refused, /keys that are known/);
  gateway.model = await signed(world, { version: 6 }, { sealing: next.sealing });
  assert.match((await device.sync()).refused, /keys that are known/);
  gateway.model = await signed(world, { version: 6 }, { signing: next.signing });
  assert.match((await device.sync()).refused, /keys that are known/);
  gateway.model = await signed(world, { version: 6 }, { ...next, signer: "first" });
  assert.match((await device.sync()).refused, /newest key/);
  gateway.model = await signed(world, { version: 6 }, { signing: [{ from: 5, by: "other" }], sealing: next.sealing });
  assert.match((await device.sync()).refused, /keys that follow/);
  gateway.model = await signed(world, { version: 6 }, { signing: next.signing, sealing: [{ ...next.sealing[0], by: "other" }] });
  assert.match((await device.sync()).refused, /keys that follow/);
  await live(device, 10);
  clock.now += 100 * MINUTE;
  await device.sync();
  assert.equal(unpackSlot(new Agreement(world.file).layout, await opened(world, gateway.slots[0].body, "sealing-1")).level, 0);
});

test("if a gateway tells an early time, no slot is sealed to a replaced key", async () => {
  const { world, gateway, open, clock } = await placed();
  const device = await open();
  gateway.model = await signed(world, { version: 1 }, { sealing: [{ from: Math.floor(clock.now / 86_400_000) }] });
  assert.equal((await device.sync()).model, 1);
  await live(device, 10);
  clock.now += 100 * MINUTE;
  gateway.answers.push({ status: 422, code: "stale-period", date: clock.now - 50 * 86_400_000 });
  await device.sync();
  clock.now += 100 * MINUTE;
  await device.sync();
  const [first, second] = gateway.slots.map(({ body }) => body);
  assert.notEqual(hex(first.subarray(17, 25)), hex(second.subarray(17, 25)));
  const { layout } = new Agreement(world.file);
  for (const body of [first, second]) assert.equal(unpackSlot(layout, await opened(world, body, "sealing-1")).level, 0);
});

test("another agreement is refused unless it is requested, and a weaker one always", async () => {
  const { store, mark, open, gateway, clock } = await placed();
  await live(await open(), 10);
  const other = (await agreed({}, "other")).file;
  await assert.rejects(open({ agreement: other }), /agreeAnew/);
  for (const { name, settings } of [{ name: "dear", settings: { epsilon: 2 } }, { name: "long", settings: { terms: { ...other.terms, lifetime_slots: 2 } } }]) {
    const costlier = (await agreed(settings, name)).file;
    const options = { agreement: costlier, agreeAnew: true };
    if (name === "long") await assert.rejects(open(options), /at most 0 millionths/, "one slot was paid, and another is offered");
    const fresh = await placed();
    await (await fresh.open()).flush();
    await assert.rejects(fresh.open(options), /at most 1000000 millionths/, name);
    // The mark keeps the life even where the state is cleared.
    await live(await fresh.open(), 10);
    await (await fresh.open()).flush();
    fresh.store.contents.clear();
    if (name === "long") await assert.rejects(fresh.open(options), /at most 0 millionths/);
    // A stated price is not believed.
    const cheap = { ...costlier, promise: other.promise };
    assert.throws(() => new Agreement(cheap), /privacy cost of its settings|figures of its settings/);
  }
  // Nor do settings count that cost nothing, or give back what was paid: another life would follow them.
  for (const epsilon of [0, -1]) {
    const { file } = await agreed({ epsilon, terms: { ...other.terms, lifetime_slots: 2 } }, "free");
    assert.throws(() => new Agreement(file), /cost something/);
  }
  for (const changes of [{ promise: { ...other.promise, delta_units: "1" } }, { promise: { ...other.promise, exchange_delta_units: "1" } }]) {
    assert.throws(() => new Agreement({ ...other, ...changes }), /privacy cost of its settings/);
  }
  for (const changes of [
    { slot: { ...other.slot, delay_ms: 0 } },
    { terms: { ...other.terms, after_interactions: 1 } },
    { deployment: "another" },
    { promise: { ...other.promise, lifetime_slots: 9 } },
  ]) {
    assert.throws(() => new Agreement({ ...other, ...changes }), /figures of its settings/);
  }
  const device = await open({ agreement: other, agreeAnew: true });
  assert.deepEqual([device.status.decided, device.status.due, device.status.sent], [10, 1, 1]);
  clock.now += 1000 * MINUTE;
  await device.sync();
  assert.equal(gateway.slots.length, 0, "what was owed under the other agreement is dropped, and stays spent");
  const changed = { ...other, canonical: other.canonical + " " };
  assert.throws(() => new Agreement(changed), Refused);
  assert.throws(() => new Agreement({ ...other, layout: { ...other.layout, budgets: [4096, 1, 1] } }), Refused);
  assert.ok(store && mark);
});

test("a stored state that this package did not write is refused", async () => {
  const { store, mark, open } = await placed();
  const device = await open();
  await live(device, 3);
  await device.flush();
  const good = store.contents.get("state");
  for (const text of ["", "{}", "null", '{"format":2}', '{"format":1}']) {
    store.contents.set("state", new TextEncoder().encode(text));
    await assert.rejects(open(), BadState, text);
  }
  const bad = new TextDecoder().decode(good).replace(/"arm":\d/, '"arm":77');
  store.contents.set("state", new TextEncoder().encode(bad));
  await assert.rejects(open(), BadState);
  store.contents.set("state", good);
  mark.text = "{}";
  await assert.rejects(open(), BadState);
});

test("what was learned may be forgotten, what was spent may not", async () => {
  const { open, gateway, clock } = await placed();
  const device = await open();
  await live(device, 10, { clicks: true });
  await device.forget();
  assert.equal(device.status.decided, 10);
  clock.now += 100 * MINUTE;
  await device.sync();
  await live(device, 30, { name: "f" });
  clock.now += 1000 * MINUTE;
  await device.sync();
  assert.equal(gateway.slots.length, 1);
});

test("a state in files", async () => {
  const folder = await mkdtemp(join(tmpdir(), "edge-"));
  try {
    const files = { store: fileStore(join(folder, "state")), mark: fileMark(join(folder, "mark")) };
    const { open, clock, gateway, world } = await placed();
    gateway.model = await signed(world, { version: 1 });
    const device = await open(files);
    await device.sync();
    await live(device, 10, { clicks: true });
    const again = await open(files);
    assert.deepEqual(again.status, device.status);
    assert.equal(again.status.modelVersion, 1);
    clock.now += 100 * MINUTE;
    await again.sync();
    assert.equal(gateway.slots.length, 1);
    assert.match(await readFile(join(folder, "mark"), "utf8"), /"sent":1/);
    // Also if a file that everybody can read has the name of the next one.
    await writeFile(join(folder, "state", "state.new"), "", { mode: 0o644 });
    await files.store.write("state", await files.store.read("state"), true);
    assert.equal((await stat(join(folder, "state", "state"))).mode & 0o777, 0o600);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("`start` hands in slots in its own time, until it is stopped", async () => {
  const { open, clock, gateway } = await placed();
  const device = await open();
  await live(device, 10);
  clock.now += 100 * MINUTE;
  await new Promise((resolve, reject) => {
    const stop = device.start(1000, (round) => {
      stop();
      if (round instanceof EdgeError) reject(round);
      else resolve(round);
    });
  });
  assert.equal(gateway.slots.length, 1);
});

test("a slot that falls due between two rounds does not wait for the next one", async () => {
  const terms = { after_interactions: 1, attribution_window_ms: 0 };
  const { open, gateway } = await placed({ agreement: { terms }, options: { random: () => 0 } });
  const device = await open();
  let first, left;
  const rounds = [new Promise((done) => (first = done)), new Promise((done) => (left = done))];
  const stop = device.start(3_600_000, () => (gateway.slots.length ? left() : first()));
  await rounds[0];
  assert.equal(gateway.slots.length, 0);
  await device.decide("e", { country: "se", age: 20 });
  await rounds[1];
  stop();
  assert.equal(gateway.slots.length, 1);
});

test("the guarantee names its figures, and what a device cannot know", async () => {
  const { open } = await placed();
  const lines = (await open()).guarantee().join("\n");
  for (const said of [/replace-one\): epsilon 2, delta 1\.2e-13/, /zero-out\): epsilon 1, delta 1\.2e-13/, /cannot know/, /at most 1 slot of 117 bytes/]) assert.match(lines, said);
});

test("if WebCrypto lacks X25519, no slot leaves, and none is lost", async () => {
  const { open, clock, gateway } = await placed();
  const device = await open();
  await live(device, 10);
  clock.now += 100 * MINUTE;
  const { generateKey } = crypto.subtle;
  crypto.subtle.generateKey = async () => {
    throw new DOMException("unknown", "NotSupportedError");
  };
  try {
    await assert.rejects(device.sync(), /X25519/);
  } finally {
    crypto.subtle.generateKey = generateKey;
  }
  await device.decide("later", { country: "fr" });
  assert.equal((await device.sync()).handedIn, 1);
  assert.equal(gateway.slots.length, 1);
});

test("a call that is refused changes nothing", async () => {
  const { open } = await placed({ agreement: { terms: { contexts_per_period: 2 } } });
  const device = await open();
  for (let time = 0; time < 5; time += 1) await assert.rejects(device.decide("e", {}, []), EdgeError);
  await assert.rejects(device.shown("other"), EdgeError);
  assert.equal((await device.decide("e", {})).learned, true);
  assert.equal(device.status.decided, 1);
});

test("a model can be read without a device", async () => {
  const world = await agreed();
  const agreement = new Agreement(world.file);
  const { body, tag } = await signed(world, { version: 9 });
  const taken = await takeModel(agreement, unseen(agreement), body, null, 0);
  assert.deepEqual([taken.shared.version, taken.seen.tag], [9, tag]);
});
