/** A value that `encode` accepts, as in `hushstream.privacy.keys`. */
export type Part = Uint8Array | string | number;

/**
 * Encode texts, bytes and whole numbers as one message that can be decoded in only one way: for each a tag, 8 bytes of
 * length, and the payload.
 */
export function encode(...parts: readonly Part[]): Uint8Array {
  return joined(
    parts.flatMap((part) => {
      const [tag, payload] =
        typeof part === "string" ? [0x73, utf8(part)] : typeof part === "number" ? [0x69, wholeBytes(part)] : [0x62, part];
      return [Uint8Array.of(tag), littleEndian(payload.length), payload];
    }),
  );
}

/** A whole number as `hushstream.privacy.keys` writes it: bit_length // 8 + 1 bytes, big-endian. */
function wholeBytes(value: number): Uint8Array {
  const digits = value.toString(2).length;
  const size = value === 0 ? 1 : Math.floor(digits / 8) + 1;
  return Uint8Array.from({ length: size }, (_, at) => Number((BigInt(value) >> BigInt(8 * (size - 1 - at))) & 255n));
}

export function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** A whole number below 2^53 as 8 bytes. */
export function littleEndian(value: number): Uint8Array {
  const view = new DataView(new ArrayBuffer(8));
  view.setUint32(0, value >>> 0, true);
  view.setUint32(4, Math.floor(value / 2 ** 32), true);
  return new Uint8Array(view.buffer);
}

export function joined(parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let place = 0;
  for (const part of parts) {
    all.set(part, place);
    place += part.length;
  }
  return all;
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The bytes of a hexadecimal text; null for any other text. */
export function unhex(text: unknown): Uint8Array | null {
  if (typeof text !== "string" || !/^(?:[0-9a-f]{2})*$/.test(text)) return null;
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function equal(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, place) => byte === other[place]);
}
