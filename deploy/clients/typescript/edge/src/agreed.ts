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

/** The sizes of a slot, and the longest delay before it is sent. */
export interface SlotSize {
  readonly content_bytes: number;
  readonly body_bytes: number;
  readonly delay_ms: number;
}

/** The fields of an agreement's file in any system; the digest `configuration` covers the keys. */
export interface AgreedFile<Slot extends SlotSize> {
  readonly format: number;
  readonly deployment: string;
  readonly promise: PromiseFigures & { readonly text: readonly string[] };
  readonly slot: Slot;
  readonly configuration: string;
  readonly sealing: { readonly public_key: string; readonly vouch_key: string };
  readonly signing_key: string;
}

export const FORMAT = 1;
const KEY_BYTES = 32;
const CONFIGURATION_BYTES = 16;
/** Bytes of a slot's body besides its content; see `deploy/docs/reference/edge-transport.md`. */
const BODY_ROOM = 89;

/** What devices of any system agree to. */
export abstract class Agreed<Slot extends SlotSize = SlotSize> {
  readonly deployment: string;
  readonly configuration: Uint8Array;
  readonly signingKey: Uint8Array;
  readonly sealingKey: Uint8Array;
  readonly vouchKey: Uint8Array;
  readonly promise: PromiseFigures;
  readonly slot: Slot;

  /**
   * Refuses a file whose configuration's digest does not cover exactly its keys and these bytes.
   *
   * @param canonical the configuration's canonical text.
   * @param prepared the prepared files, each after its length.
   */
  protected constructor(file: AgreedFile<Slot>, canonical: Uint8Array, prepared: Uint8Array = new Uint8Array(0)) {
    const texts = [file.sealing.public_key, file.sealing.vouch_key, file.signing_key];
    const [sealing, vouch, signing] = texts.map((text) => bytes(text, KEY_BYTES)) as [Uint8Array, Uint8Array, Uint8Array];
    const configuration = bytes(file.configuration, CONFIGURATION_BYTES);
    const said = joined([littleEndian(canonical.length), canonical, prepared, sealing, vouch, signing]);
    expect(equal(blake2b(said, { person: "hush-config" }), configuration), "the configuration that its digest says");
    [this.configuration, this.sealingKey, this.vouchKey, this.signingKey] = [configuration, sealing, vouch, signing];
    [this.deployment, this.promise, this.slot] = [file.deployment, file.promise, file.slot];
  }

  /**
   * What the slots of a life cost from number `slot` on, computed from the settings: the stated price is not believed.
   * In millionths of what adds up over slots: of epsilon, or of rho if the noise is Gaussian.
   */
  abstract priceFrom(slot: number): number;

  /**
   * Refuse an agreement that states other epsilons than its settings have, in millionths, or smaller deltas; or settings
   * that give no price: slots under them would count as nothing, or give back what was paid.
   */
  protected requireStated(zeroOut: number, which: number, slack: number, delta: bigint, exchanged = delta): void {
    const { epsilon_micro: one, exchange_epsilon_micro: other, delta_units: least, exchange_delta_units: more } = this.promise;
    expect(zeroOut >= 1, "settings by which slots cost something");
    const near = Math.abs(one - zeroOut) <= slack && Math.abs(other - which) <= slack;
    expect(near && BigInt(least) >= delta && BigInt(more) >= exchanged, "the privacy cost of its settings");
  }

  /** Refuse slots whose content does not have this size. */
  protected requireContent(size: number): void {
    const { content_bytes: content, body_bytes: body } = this.slot;
    expect(content === size && body === size + BODY_ROOM, `slots of ${size} bytes in bodies of ${size + BODY_ROOM}`);
  }
}

function bytes(text: string, size: number): Uint8Array {
  const found = unhex(text);
  expect(found?.length === size, `${2 * size} hexadecimal digits`);
  return found!;
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);
