// The operator's side for tests of the device: agreements with keys, signed models, and a gateway with prescribed
// answers.
import { createHash, createPrivateKey, createPublicKey, hkdfSync, sign } from "node:crypto";

import { blake2b } from "../dist/blake2b.js";
import { queue } from "../dist/device/store.js";
import { hex, joined, littleEndian, utf8 } from "../dist/encoding.js";
import { canonical } from "../dist/features/canonical.js";
import { FeatureLayout } from "../dist/layout.js";

export { hex };

const FEATURES = {
  age: { kind: "number", range: [16, 96], scale: "linear", nodes: 3 },
  country: { kind: "category", vocabulary: ["de", "fr", "se"] },
};
const SLOT = { period_ms: 86_400_000, delay_ms: 3_600_000 };
const TERMS = {
  after_interactions: 10, lifetime_slots: 1, levels: 1, attribution_window_ms: 1_800_000, contexts_per_period: null,
  quota_period_ms: 86_400_000, renew_ms: null, click_chance: 0.8, exploration: { choice: "greedy", share: 0.05, temperature: 0.05 },
};
/** A delta above the least one of every agreement here: 2^-43. */
const DELTA = String(2n ** 37n);
const PREFIX = { x25519: "302e020100300506032b656e04220420", ed25519: "302e020100300506032b657004220420" };

function pair(kind, name) {
  return pairOf(kind, createHash("sha256").update(name).digest());
}

/** Make a pair of keys from its 32 private bytes. */
export function pairOf(kind, seed) {
  const key = createPrivateKey({ key: Buffer.concat([Buffer.from(PREFIX[kind], "hex"), seed]), format: "der", type: "pkcs8" });
  const shown = createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32);
  return { key, shown: new Uint8Array(shown) };
}

/** The canonical form of the settings whose figures an agreement states. */
export function settings(deployment, epsilon, { arms, features }, terms, { period_ms: period, delay_ms: delay }) {
  return JSON.stringify({
    deployment, arms, budget: null, context: { declared: { features } }, exploration: terms.exploration,
    feedback: { attribution_window_seconds: terms.attribution_window_ms / 1000 }, 
    release: { epsilon, levels: terms.levels, sampling: 1, mode: "slot-sums", form: "features" },
    system: "p2b", kind: "edge", public_dataset: false, named_items: false,
    slot: {
      after_interactions: terms.after_interactions, lifetime_slots: terms.lifetime_slots, period_seconds: period / 1000,
      settle_seconds: delay / 1000, renew_every_seconds: terms.renew_ms === null ? null : terms.renew_ms / 1000,
    },
    users: { contexts_per_period: terms.contexts_per_period, period_seconds: terms.quota_period_ms / 1000 },
  });
}

/** The digest of settings and keys. */
export function digestOf(plain, ...keys) {
  return hex(blake2b(joined([littleEndian(utf8(plain).length), utf8(plain), ...keys]), { person: "hush-config" }));
}

/** Make an agreement, and the keys in it. */
export async function agreed(changes = {}, name = "first") {
  const keys = { sealing: pair("x25519", `sealing ${name}`), vouch: pair("ed25519", `vouch ${name}`), signing: pair("ed25519", `signing ${name}`) };
  const { epsilon = 1, lifetime_slots: slots = 1 } = { epsilon: changes.epsilon, ...changes.terms };
  const terms = { ...TERMS, ...changes.terms };
  const plain = settings(name, epsilon, { arms: 3, features: FEATURES }, terms, SLOT);
  const layout = new FeatureLayout(FEATURES, 3, 1, [2048, 1024, 1024]);
  const content = 12 + 4 * layout.places;
  const file = {
    format: 1,
    deployment: name,
    configuration: digestOf(plain, keys.sealing.shown, keys.vouch.shown, keys.signing.shown),
    canonical: plain,
    sealing: { public_key: hex(keys.sealing.shown), vouch_key: hex(keys.vouch.shown) },
    signing_key: hex(keys.signing.shown),
    promise: {
      epsilon_micro: 1e6 * slots * epsilon, exchange_epsilon_micro: 2e6 * slots * epsilon, 
      delta_units: DELTA, exchange_delta_units: DELTA, lifetime_slots: slots, text: [], ...changes.promise,
    },
    slot: { content_bytes: content, body_bytes: content + 89, ...SLOT },
    terms,
    layout: {
      arms: 3, cells: layout.cells, places: layout.places, digest: hex(layout.digest), budgets: [2048, 1024, 1024],
      features: FEATURES,
    },
    cold: { mean: 0, variance: 1 / 3, reward_variance: 1 },
  };
  return { file, keys };
}

/** Make the signed body of a model; `more` changes parts of it, so that it is not valid. */
export async function signed({ file, keys }, changes = {}, more = {}) {
  const { arms, cells, digest } = file.layout;
  const view = new DataView(new ArrayBuffer(16 * arms * cells));
  for (let place = 0; place < arms * cells; place += 1) {
    view.setFloat64(8 * place, more.mean ?? place / 100, true);
    view.setFloat64(8 * (place + arms * cells), more.variance ?? 0.01, true);
  }
  const content = new Uint8Array(view.buffer);
  const sha256 = (message) => createHash("sha256").update(message).digest("hex");
  const statement = {
    arms, cells, configuration: file.configuration, content_bytes: content.length,
    content_sha256: sha256(content), delta_units: "0", deployment: file.deployment, epsilon_micro: 1_000_000,
    expires_ms: 2_000_000_000_000, format: 1, issued_ms: 1_700_000_000_000, layout: digest,
    private_as_stated: true, reward_variance: 0.08, version: 1, ...changes,
  };
  const text = utf8((more.text ?? ((plain) => plain))(canonical(statement)));
  const signing = [{ ...keys.signing, from: 0 }];
  for (const [place, { from, by }] of (more.signing ?? []).entries()) {
    const next = pair("ed25519", `signing ${place + 1}`);
    const said = joined([utf8("hushstream signing key\0"), next.shown, littleEndian(from)]);
    signing.push({ ...next, from, vouched: sign(null, said, by ? pair("ed25519", by).key : signing.at(-1).key) });
  }
  const sealing = [{ ...keys.sealing, vouch: keys.vouch, from: 0 }];
  for (const [place, { from, by }] of (more.sealing ?? []).entries()) {
    const next = { ...pair("x25519", `sealing-${place + 1}`), vouch: pair("ed25519", `vouch-${place + 1}`) };
    const part = (tag, payload) => joined([utf8(tag), littleEndian(payload.length), payload]);
    const number = Uint8Array.from(Buffer.from((BigInt(from) + (1n << 24n)).toString(16).slice(1).padStart(6, "0"), "hex"));
    const size = Math.floor(from.toString(2).length / 8) + 1;
    const said = joined([
      part("s", utf8("hushstream sealing key")), part("b", next.shown), part("b", next.vouch.shown),
      part("i", number.subarray(-size)),
    ]);
    sealing.push({ ...next, from, vouched: sign(null, said, by ? pair("ed25519", by).key : sealing.at(-1).vouch.key) });
  }
  const signers = { first: keys.signing, other: pair("ed25519", "nobody") };
  const signer = signers[more.signer] ?? signing.at(-1);
  const by = more.signer === "first" ? 0 : signing.length - 1;
  const empty = new Uint8Array(64);
  const head = joined([
    utf8("hushmdl1"), littleEndian(text.length).subarray(0, 4), text, Uint8Array.of(by),
    sign(null, joined([utf8("hushstream model statement 1\0"), text]), signer.key),
    Uint8Array.of(signing.length), ...signing.flatMap((one) => [one.shown, littleEndian(one.from), one.vouched ?? empty]),
    Uint8Array.of(sealing.length),
    ...sealing.flatMap((one) => [one.shown, one.vouch.shown, littleEndian(one.from), one.vouched ?? empty]),
  ]);
  if (more.flip !== undefined) head[more.flip] ^= 1;
  return { body: joined([head, content]), tag: more.tag ?? `"${sha256(head).slice(0, 32)}"` };
}

/** Open the content of a slot's body as the shuffler does (HPKE). */
export async function opened({ keys }, body, name) {
  const { key, shown } = name === undefined ? keys.sealing : pair("x25519", name);
  const { opens } = await import("./hpke.mjs");
  return opens(body, key, shown);
}

/** A store and a mark in memory. */
export function memory() {
  const store = {
    contents: new Map(),
    read: async (name) => store.contents.get(name) ?? null,
    write: async (name, content) => void store.contents.set(name, content),
    remove: async (name) => void store.contents.delete(name),
    alone: queue(),
  };
  const mark = { text: null, read: async () => mark.text, write: async (text) => void (mark.text = text) };
  return { store, mark };
}

/** A gateway that accepts slots and serves a model; it answers with the next of `answers`, otherwise with 204. */
export class Gateway {
  slots = [];
  asked = [];
  answers = [];
  model = null;
  before = () => undefined;

  fetch = async (url, request) => {
    this.asked.push({ url, ...request });
    if (new URL(url).pathname === "/v1/model") return this.#modelOf(request);
    this.before();
    this.slots.push({ body: request.body, headers: request.headers });
    const answer = this.answers.length ? this.answers.shift() : 204;
    if (answer === null) throw new TypeError("fetch failed");
    const { status, code, date } = typeof answer === "number" ? { status: answer } : answer;
    const headers = date === undefined ? {} : { Date: new Date(date).toUTCString() };
    return new Response(status === 204 ? null : JSON.stringify({ code }), { status, headers });
  };

  #modelOf({ headers }) {
    if (this.model === null) return new Response("{}", { status: 404 });
    if (headers["If-None-Match"] === this.model.tag) return new Response(null, { status: 304 });
    return new Response(this.model.body, { headers: { ETag: this.model.tag } });
  }
}
