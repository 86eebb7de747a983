import { utf8 } from "../encoding.js";
import { BadValue } from "../errors.js";

/** Most bytes of UTF-8 of a text value. */
export const LONGEST_TEXT = 128;

/** A value as a finite number. */
export function finite(name: string, value: unknown, expected: string): number {
  if (typeof value !== "number" && typeof value !== "bigint") throw wrong(name, expected, value);
  const found = Number(value);
  if (Number.isNaN(found)) throw new BadValue(`${name}: expected ${expected}, got NaN`);
  if (!Number.isFinite(found)) throw new BadValue(`${name}: expected ${expected}, got an infinite number`);
  return found;
}

/** A value as a text; whole numbers stand for their decimal text. */
export function text(name: string, value: unknown, expected: string): string {
  let found = value;
  if (typeof found === "bigint" && found < 1n << 400n && found > -(1n << 400n)) found = String(found);
  if (Number.isSafeInteger(found)) found = String(BigInt(found as number));
  if (typeof found !== "string") throw wrong(name, expected, value);
  if (found.length > LONGEST_TEXT || utf8(found).length > LONGEST_TEXT) {
    throw new BadValue(`${name}: expected at most ${LONGEST_TEXT} bytes of UTF-8, got more`);
  }
  return found;
}

/** The entries of an array of numbers, plain or typed. */
export function vector(name: string, value: unknown, length: number): Float64Array {
  const expected = `${length} finite numbers`;
  const typed = value instanceof Float64Array || value instanceof Float32Array;
  if (!Array.isArray(value) && !typed) throw wrong(name, expected, value);
  const entries = value as ArrayLike<unknown>;
  if (entries.length !== length) throw new BadValue(`${name}: expected ${expected}, got ${entries.length} entries`);
  return Float64Array.from(entries, (entry) => finite(name, entry, expected));
}

/** The error of a value of another type; names the type, never the value. */
export function wrong(name: string, expected: string, value: unknown): BadValue {
  const kind = value === null || value === undefined ? "nothing" : Array.isArray(value) ? "an array" : typeof value;
  return new BadValue(`${name}: expected ${expected}, got ${kind}`);
}

/** Compare texts by code points, as Python does; `<` compares UTF-16 units. */
export function byCodePoint(one: string, other: string): number {
  const [mine, theirs] = [Array.from(one), Array.from(other)];
  for (let place = 0; place < Math.min(mine.length, theirs.length); place += 1) {
    const apart = mine[place]!.codePointAt(0)! - theirs[place]!.codePointAt(0)!;
    if (apart !== 0) return apart;
  }
  return mine.length - theirs.length;
}
