import type { Agreed } from "../agreed.js";
import { encode, equal, hex, joined, littleEndian, utf8 } from "../encoding.js";
import { Refused, require } from "../errors.js";
import { canonical } from "../features/canonical.js";
import { sha256, subtle } from "../hashes.js";
import type { SealingKey } from "./body.js";
import { agrees } from "./hpke.js";

/** A key that signs models, and the first version that it signs. */
export interface SigningKey {
  readonly publicKey: Uint8Array;
  /** Its bytes in a model, with the signature that vouches for it. */
  readonly entry: Uint8Array;
  readonly fromVersion: number;
}

/** What a device knows of models. It never takes an older one, nor one that lacks a key that it knows. */
export interface SeenModel {
  readonly version: number;
  /** SHA-256 of the newest statement; empty before the first. */
  readonly statement: Uint8Array;
  readonly tag: string;
  readonly signing: readonly SigningKey[];
  readonly sealing: readonly SealingKey[];
}

/** What a device knows before any model: the agreement's own keys. */
export function unseen(agreement: Agreed): SeenModel {
  const { signingKey, sealingKey, vouchKey } = agreement;
  const first = new Uint8Array(8 + SIGNATURE_BYTES);
  return {
    version: 0,
    statement: new Uint8Array(0),
    tag: "",
    signing: [{ publicKey: signingKey, fromVersion: 0, entry: joined([signingKey, first]) }],
    sealing: [{ publicKey: sealingKey, fromPeriod: 0, entry: joined([sealingKey, vouchKey, first]) }],
  };
}

const MAGIC = "hushmdl1";
const MOST_STATEMENT = 65536;
const SIGNATURE_BYTES = 64;
/** Most bytes of a body besides statement and content: with 255 keys of each kind. */
const MOST_KEYS = 8 + 4 + 1 + 64 + 2 + 255 * (104 + 136);
const SIGNED = utf8("hushstream model statement 1\0");
const SIGNING = utf8("hushstream signing key\0");

/**
 * What a statement says of a version in any system. Its text is the canonical form of exactly these fields and the system's
 * own.
 */
export interface Stated {
  readonly configuration: string;
  readonly content_bytes: number;
  readonly content_sha256: string;
  readonly delta_units: string;
  readonly deployment: string;
  readonly epsilon_micro: number;
  readonly expires_ms: number;
  readonly format: number;
  readonly issued_ms: number;
  readonly private_as_stated: boolean;
  readonly version: number;
}

const WHOLE = ["content_bytes", "epsilon_micro", "expires_ms", "format", "issued_ms", "version"];
const OTHERS = ["configuration", "content_sha256", "delta_units", "deployment", "private_as_stated"];

/** The names of a system's own fields: those of whole numbers, and others, which the system checks itself. */
export interface Own {
  readonly whole: readonly string[];
  readonly others: readonly string[];
}

/**
 * Check a model; gives its statement and content, or refuses it. The checks are listed in
 * `deploy/docs/reference/edge-transport.md` ("A device takes a model only if").
 *
 * @param body the body of `GET /v1/model`.
 * @param tag the answer's `ETag`; null if a browser does not show it.
 */
export async function signedBy<Said extends Stated>(
  agreement: Agreed,
  seen: SeenModel,
  body: Uint8Array,
  tag: string | null,
  nowMs: number,
  own: Own,
): Promise<{ said: Said; content: Uint8Array; seen: SeenModel }> {
  const reader = new Reader(body);
  expect(new TextDecoder().decode(reader.take(8)) === MAGIC, `a body that begins with ${MAGIC}`);
  const size = reader.uint32();
  expect(size <= MOST_STATEMENT, `a statement of at most ${MOST_STATEMENT} bytes`);
  const text = reader.take(size);
  const [by, signature] = [reader.take(1)[0]!, reader.take(64)];
  const signing = await signingKeys(reader);
  const sealing = await sealingKeys(reader);
  const digest = await sha256(body.subarray(0, reader.place));
  const found = `"${hex(digest).slice(0, 32)}"`;
  expect(tag === null || tag === found, "the tag that follows from the content");
  expect(follows(signing, seen.signing) && follows(sealing, seen.sealing), "all keys that are known");
  const said = statementOf<Said>(text, own);
  const signer = signing.findLastIndex((key) => key.fromVersion <= said.version);
  expect(by === signer, "the signature of the newest key");
  expect(await verified(signing[signer]!.publicKey, signature, joined([SIGNED, text])), "a signature that verifies");
  requireAgreed(agreement, said);
  const same = equal(await sha256(text), seen.statement);
  expect(said.version > seen.version || (said.version === seen.version && same), "no older version than was seen");
  expect(said.expires_ms > nowMs, "a model that has not expired");
  const content = reader.rest();
  expect(content.length === said.content_bytes, `content of ${said.content_bytes} bytes`);
  expect(hex(await sha256(content)) === said.content_sha256, "content of the stated digest");
  const taken = { version: said.version, statement: await sha256(text), tag: found, signing, sealing };
  return { said, content: content.slice(), seen: taken };
}

/** Most bytes before a model's content. */
export const MOST_HEAD = MOST_STATEMENT + MOST_KEYS;

function statementOf<Said extends Stated>(text: Uint8Array, own: Own): Said {
  let said: Record<string, unknown>;
  let plain: string;
  try {
    plain = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(text);
    said = JSON.parse(plain) as Record<string, unknown>;
  } catch {
    throw new Refused("model: expected a statement in JSON, got another");
  }
  const object = typeof said === "object" && said !== null && !Array.isArray(said);
  const whole = [...WHOLE, ...own.whole];
  const names = [...whole, ...OTHERS, ...own.others].sort();
  expect(object && Object.keys(said).sort().join() === names.join(), `a statement of ${names.join(", ")}`);
  // The signature is not checked yet, so the text may be nested as deep as it is long.
  expect(Object.values(said).every((one) => typeof one !== "object" || one === null), "plain values");
  // Each meaning has exactly one text: no whole number with a decimal point, no key twice.
  expect(canonical(said) === plain, "a statement in canonical form");
  expect(whole.every((name) => Number.isSafeInteger(said[name]) && (said[name] as number) >= 0), "whole numbers");
  return said as unknown as Said;
}

function requireAgreed({ deployment, configuration, promise }: Agreed, said: Stated): void {
  expect(said.format === 1 && said.private_as_stated === true, "format 1 and a private release");
  expect(said.deployment === deployment && said.configuration === hex(configuration), "the configuration agreed to");
  const digits = typeof said.delta_units === "string" && /^(?:0|[1-9][0-9]{0,30})$/.test(said.delta_units);
  const agreed = digits && BigInt(said.delta_units) <= BigInt(promise.delta_units);
  expect(agreed && said.epsilon_micro <= promise.epsilon_micro, "a privacy cost no higher than agreed");
}

/** Whether a chain of keys begins with the known chain, whose first key is the agreement's. */
function follows(found: readonly { entry: Uint8Array }[], known: readonly { entry: Uint8Array }[]): boolean {
  return known.every(({ entry }, at) => at < found.length && equal(entry, found[at]!.entry));
}

async function signingKeys(reader: Reader): Promise<SigningKey[]> {
  const keys: SigningKey[] = [];
  for (let left = reader.take(1)[0]!; left > 0; left -= 1) {
    const from = reader.place;
    const [publicKey, fromVersion, signature] = [reader.take(32), reader.uint64(), reader.take(SIGNATURE_BYTES)];
    const before = keys.at(-1);
    if (before !== undefined) {
      const said = joined([SIGNING, publicKey, littleEndian(fromVersion)]);
      const vouched = await verified(before.publicKey, signature, said);
      expect(fromVersion > before.fromVersion && vouched, "signing keys that follow");
    }
    keys.push({ publicKey, fromVersion, entry: reader.since(from) });
  }
  return keys;
}

async function sealingKeys(reader: Reader): Promise<SealingKey[]> {
  const keys: SealingKey[] = [];
  let vouch: Uint8Array | null = null;
  for (let left = reader.take(1)[0]!; left > 0; left -= 1) {
    const from = reader.place;
    const [publicKey, vouchKey, fromPeriod] = [reader.take(32), reader.take(32), reader.uint64()];
    const signature = reader.take(SIGNATURE_BYTES);
    if (vouch !== null) {
      const said = encode("hushstream sealing key", publicKey, vouchKey, fromPeriod);
      const vouched = await verified(vouch, signature, said);
      expect(fromPeriod > keys.at(-1)!.fromPeriod && vouched, "sealing keys that follow");
      expect(await agrees(publicKey), "sealing keys of full order");
    }
    keys.push({ publicKey, fromPeriod, entry: reader.since(from) });
    vouch = vouchKey;
  }
  return keys;
}

async function verified(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): Promise<boolean> {
  const algorithm = { name: "Ed25519" };
  let key: CryptoKey;
  try {
    key = await subtle().importKey("raw", publicKey as BufferSource, algorithm, false, ["verify"]);
  } catch {
    throw new Refused("model: expected Ed25519 in WebCrypto (Chromium 137, Firefox 130, Safari 17, Node 18 or later), got none");
  }
  return subtle().verify(algorithm, key, signature as BufferSource, message as BufferSource);
}

class Reader {
  place = 0;
  readonly #view: DataView;

  constructor(private readonly body: Uint8Array) {
    this.#view = new DataView(body.buffer, body.byteOffset, body.length);
  }

  take(size: number): Uint8Array {
    expect(this.place + size <= this.body.length, "a body of the length that it says");
    this.place += size;
    return this.body.slice(this.place - size, this.place);
  }

  uint32(): number {
    this.take(4);
    return this.#view.getUint32(this.place - 4, true);
  }

  uint64(): number {
    this.take(8);
    const found = Number(this.#view.getBigUint64(this.place - 8, true));
    expect(Number.isSafeInteger(found), "numbers below 2^53");
    return found;
  }

  since(place: number): Uint8Array {
    return this.body.slice(place, this.place);
  }

  rest(): Uint8Array {
    return this.body.slice(this.place);
  }
}

export const expect = (good: boolean, what: string): void => require("model", good, what);
