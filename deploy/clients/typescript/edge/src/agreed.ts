import { blake2b } from "./blake2b.js";
import { equal, joined, littleEndian, unhex } from "./encoding.js";
import { require } from "./errors.js";

/** What a whole life costs at most: epsilons in units of 10^-6, deltas in units of 2^-80 as decimal digits. */
export interface PromiseFigures {
  readonly epsilon_micro: number;
  readonly exchange_epsilon_micro: number;
  readonly delta_units: string;
  readonly exchange_delta_units: string;
  readonly lifetime_slots: number;
}

/** The keys in an agreement of any system, and the digest that covers them. */
export interface PinningFile {
  readonly configuration: string;
  readonly sealing: { readonly public_key: string; readonly vouch_key: string };
  readonly signing_key: string;
}

/** What devices of any system agree to. */
export interface Agreed {
  readonly deployment: string;
  readonly configuration: Uint8Array;
  readonly signingKey: Uint8Array;
  readonly sealingKey: Uint8Array;
  readonly vouchKey: Uint8Array;
  readonly promise: PromiseFigures;
}

export const FORMAT = 1;
const KEY_BYTES = 32;
const CONFIGURATION_BYTES = 16;
/** Bytes of a slot's body besides its content; see `deploy/docs/reference/edge-transport.md`. */
export const BODY_ROOM = 89;

/**
 * The configuration's digest, the sealing key, the vouch key and the signing key; refused if the digest does not cover
 * exactly these keys and this configuration.
 */
export function pinned(
  file: PinningFile,
  canonical: Uint8Array,
  prepared: Uint8Array = new Uint8Array(0),
): [Uint8Array, Uint8Array, Uint8Array, Uint8Array] {
  const texts = [file.sealing.public_key, file.sealing.vouch_key, file.signing_key];
  const [sealing, vouch, signing] = texts.map((text) => bytes(text, KEY_BYTES)) as [Uint8Array, Uint8Array, Uint8Array];
  const configuration = bytes(file.configuration, CONFIGURATION_BYTES);
  const said = joined([littleEndian(canonical.length), canonical, prepared, sealing, vouch, signing]);
  expect(equal(blake2b(said, { person: "hush-config" }), configuration), "the configuration that its digest says");
  return [configuration, sealing, vouch, signing];
}

/** Whether another agreement costs more than this one in any of its figures; such an agreement is always refused. */
export function isWeaker(than: PromiseFigures, other: PromiseFigures): boolean {
  return (
    other.epsilon_micro > than.epsilon_micro ||
    other.exchange_epsilon_micro > than.exchange_epsilon_micro ||
    BigInt(other.delta_units) > BigInt(than.delta_units) ||
    BigInt(other.exchange_delta_units) > BigInt(than.exchange_delta_units) ||
    other.lifetime_slots > than.lifetime_slots
  );
}

function bytes(text: string, size: number): Uint8Array {
  const found = unhex(text);
  expect(found?.length === size, `${2 * size} hexadecimal digits`);
  return found!;
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);
