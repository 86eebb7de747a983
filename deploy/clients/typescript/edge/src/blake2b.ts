/*
 * BLAKE2b (RFC 7693) with a digest of 16 bytes, which WebCrypto lacks: with a key for coins and report ids, with a
 * personalisation string for public digests. A 64-bit word is two 32-bit words, the low half first.
 */

const IV = Uint32Array.of(
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
);
/** The order in which each round takes the message's words; the last two rounds repeat the first two. */
const ORDER =
  "0123456789abcdef" + "ea489fd61c02b753" + "b8c052fdae367194" + "7931dcbe265a40f8" + "905724afe1bc683d" +
  "2c6a0b834d75fe19" + "c51fed4a0763928b" + "db7ec13950f4862a" + "6fe9b308c2d714a5" + "a2847615fb9e3cd0";
const ROUNDS = Uint8Array.from(ORDER + ORDER.slice(0, 32), (digit) => parseInt(digit, 16));
/** The words that each mixing step takes: the columns, then the diagonals. */
const MIXED = Uint8Array.from("048c159d26ae37bf05af16bc278d349e", (digit) => parseInt(digit, 16));
const BLOCK = 128;

export const DIGEST_BYTES = 16;

const state = new Uint32Array(16);
const work = new Uint32Array(32);
const words = new Uint32Array(32);

/** The digest of `message` in 16 bytes, under a key of at most 64 bytes, or for a purpose (`person`) of at most 16 bytes. */
export function blake2b(message: Uint8Array, { key, person }: { key?: Uint8Array; person?: string }): Uint8Array {
  state.set(IV);
  state[0]! ^= 0x01010000 ^ ((key?.length ?? 0) << 8) ^ DIGEST_BYTES;
  if (person !== undefined) {
    const named = new Uint8Array(16);
    named.set(new TextEncoder().encode(person));
    load(named, 0, 4, (place, word) => (state[12 + place]! ^= word));
  }
  const prefix = key === undefined ? 0 : BLOCK;
  const input = new Uint8Array(Math.max(BLOCK, Math.ceil((prefix + message.length) / BLOCK) * BLOCK));
  if (key !== undefined) input.set(key);
  input.set(message, prefix);
  const length = prefix + message.length;
  for (let start = 0; start < input.length; start += BLOCK) {
    const last = start + BLOCK === input.length;
    load(input, start, 32, (place, word) => (words[place] = word));
    compress(last ? length : start + BLOCK, last);
  }
  const digest = new DataView(new ArrayBuffer(DIGEST_BYTES));
  for (let place = 0; place < 4; place += 1) digest.setUint32(4 * place, state[place]!, true);
  return new Uint8Array(digest.buffer);
}

function load(bytes: Uint8Array, start: number, count: number, take: (place: number, word: number) => void): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  for (let place = 0; place < count; place += 1) take(place, view.getUint32(start + 4 * place, true));
}

function compress(length: number, last: boolean): void {
  work.set(state);
  work.set(IV, 16);
  work[24]! ^= length;
  work[25]! ^= length / 2 ** 32;
  if (last) {
    work[28]! ^= 0xffffffff;
    work[29]! ^= 0xffffffff;
  }
  for (let round = 0; round < 12; round += 1) {
    for (let step = 0; step < 8; step += 1) {
      const [a, b, c, d] = MIXED.subarray(4 * step, 4 * step + 4) as unknown as [number, number, number, number];
      mix(2 * a, 2 * b, 2 * c, 2 * d, 2 * ROUNDS[16 * round + 2 * step]!, 2 * ROUNDS[16 * round + 2 * step + 1]!);
    }
  }
  for (let place = 0; place < 16; place += 1) state[place]! ^= work[place]! ^ work[place + 16]!;
}

function mix(a: number, b: number, c: number, d: number, first: number, second: number): void {
  add(a, work[b]!, work[b + 1]!);
  add(a, words[first]!, words[first + 1]!);
  turn(d, a, 32);
  add(c, work[d]!, work[d + 1]!);
  turn(b, c, 24);
  add(a, work[b]!, work[b + 1]!);
  add(a, words[second]!, words[second + 1]!);
  turn(d, a, 16);
  add(c, work[d]!, work[d + 1]!);
  turn(b, c, 63);
}

function add(to: number, low: number, high: number): void {
  const sum = work[to]! + low;
  work[to] = sum;
  work[to + 1] = work[to + 1]! + high + (sum > 0xffffffff ? 1 : 0);
}

/** Set word `to` to `to ^ with`, rotated right. */
function turn(to: number, other: number, by: number): void {
  const low = work[to]! ^ work[other]!;
  const high = work[to + 1]! ^ work[other + 1]!;
  const [first, second, rest] = by >= 32 ? [high, low, by - 32] : [low, high, by];
  work[to] = rest === 0 ? first : (first >>> rest) | (second << (32 - rest));
  work[to + 1] = rest === 0 ? second : (second >>> rest) | (first << (32 - rest));
}
