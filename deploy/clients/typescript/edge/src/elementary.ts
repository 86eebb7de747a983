/*
 * Elementary functions with a fixed order of operations, so that every engine gives the same bits.
 *
 * `Math.log` differs in the last bit between engines, and ECMAScript allows it. Each operation used here is fixed by
 * IEEE 754. `log` is that of `hushstream.systems.p2b.server.estimate`; `sum` adds as numpy does.
 */

/** ln 2 to 32 bits: its multiples by exponents are exact (as in FreeBSD's msun). */
const LN2_HIGH = 0.69314718036912381649;
const LN2_LOW = 1.9082149292705877e-10;
const SQRT_HALF = 0.7071067811865476;
const LOG_TERMS = 12;
const EXPONENT_BIAS = 1022;
const SUBNORMAL = 2 ** 54;
/** Up to so many numbers are added in eight lanes; a longer list is halved first. */
const LANES_AT_MOST = 128;

const bits = new DataView(new ArrayBuffer(8));

/** Natural logarithm of a positive finite number; within 2 units in the last place. */
export function log(value: number): number {
  let scale = 0;
  if (value < 2.2250738585072014e-308) {
    value *= SUBNORMAL;
    scale = -54;
  }
  bits.setFloat64(0, value);
  const high = bits.getUint32(0);
  let exponent = (high >>> 20) - EXPONENT_BIAS + scale;
  bits.setUint32(0, ((high & 0xfffff) | (EXPONENT_BIAS << 20)) >>> 0);
  let mantissa = bits.getFloat64(0);
  if (mantissa < SQRT_HALF) {
    mantissa *= 2;
    exponent -= 1;
  }
  const ratio = (mantissa - 1) / (mantissa + 1);
  const square = ratio * ratio;
  let series = 0;
  for (let term = LOG_TERMS - 1; term > 0; term -= 1) series = (series + 1 / (2 * term + 1)) * square;
  return exponent * LN2_HIGH + (2 * (ratio + ratio * series) + exponent * LN2_LOW);
}

/** The nearest whole number, and of two the even one, as Python's `round`. */
export function round(value: number): number {
  const floor = Math.floor(value);
  const over = value - floor;
  if (over !== 0.5) return over < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** The sum in numpy's order (pairwise, in eight lanes), so that it rounds alike. */
export function sum(values: Float64Array): number {
  const size = values.length;
  if (size < 8) return values.reduce((total, value) => total + value, 0);
  if (size > LANES_AT_MOST) {
    const half = (size >> 1) - ((size >> 1) % 8);
    return sum(values.subarray(0, half)) + sum(values.subarray(half));
  }
  const lanes = values.slice(0, 8);
  let place = 8;
  for (; place < size - (size % 8); place += 8) {
    for (let lane = 0; lane < 8; lane += 1) lanes[lane]! += values[place + lane]!;
  }
  const [a, b, c, d, e, f, g, h] = lanes as unknown as [number, number, number, number, number, number, number, number];
  let total = a + b + (c + d) + (e + f + (g + h));
  for (; place < size; place += 1) total += values[place]!;
  return total;
}
