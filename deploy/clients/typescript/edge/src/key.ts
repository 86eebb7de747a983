import { blake2b } from "./blake2b.js";
import { encode, joined, littleEndian, utf8, type Part } from "./encoding.js";
import { EdgeError } from "./errors.js";
import { hmac } from "./hashes.js";

export const KEY_BYTES = 32;

/**
 * A user's key, from which every coin and report id is derived, as from `hushstream.privacy.keys.Key`.
 *
 * HMAC-SHA256 of WebCrypto derives the key of digests once, in a promise. After that BLAKE2b uses this key without a
 * promise, so that a decision does not wait.
 */
export class Key {
  readonly #material: Uint8Array;
  readonly #digestKey: Uint8Array;

  private constructor(material: Uint8Array, digestKey: Uint8Array) {
    this.#material = material;
    this.#digestKey = digestKey;
  }

  /** Make a key from 32 secret bytes. */
  static async of(material: Uint8Array): Promise<Key> {
    if (material.length !== KEY_BYTES) throw new EdgeError(`key: expected ${KEY_BYTES} bytes, got ${material.length}`);
    const own = material.slice();
    return new Key(own, await hmac(own, encode("digest-key")));
  }

  /** Make a new random key. */
  static drawn(): Promise<Key> {
    return Key.of(crypto.getRandomValues(new Uint8Array(KEY_BYTES)));
  }

  /** The secret bytes, only for the device's own store. */
  get material(): Uint8Array {
    return this.#material.slice();
  }

  /** 32 pseudorandom bytes: HMAC-SHA256 over the encoding of a purpose and parts. */
  prf(purpose: string, ...parts: readonly Part[]): Promise<Uint8Array> {
    return hmac(this.#material, encode(purpose, ...parts));
  }

  /** A keyed digest of a chunk, in 16 bytes; without the key it does not show the chunk. */
  digest(purpose: string, chunk: Uint8Array): Uint8Array {
    const label = utf8(purpose);
    const head = [label.length, 1, chunk.length].map(littleEndian);
    return blake2b(joined([...head, label, chunk]), { key: this.#digestKey });
  }

  /** A keyed uniform number in [0, below), for `below` up to 2^32: 128 bits, reduced. */
  uniform(purpose: string, chunk: Uint8Array, below: number): number {
    return this.digest(purpose, chunk).reduceRight((rest, byte) => (rest * 256 + byte) % below, 0);
  }

  /** A keyed uniform number below 2^64. */
  word(purpose: string, number: number): bigint {
    const digest = this.digest(purpose, littleEndian(number));
    return new DataView(digest.buffer).getBigUint64(0, true);
  }
}
