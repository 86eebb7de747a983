import { round } from "../elementary.js";
import { highest } from "./sparse.js";

/** Propensities are whole numbers of billionths; an arm with this weight is certain. */
export const WHOLE = 1_000_000_000;

/** Softmax rounds scores to this fraction of a temperature. */
const STEPS = 64;
const LOWEST = 20 * STEPS;

/** How an arm is chosen from scores: see `hushstream.learners.exploration`. */
export type Exploration =
  | { readonly choice: "epsilon"; /** In billionths. */ readonly share: number }
  | { readonly choice: "softmax"; readonly temperature: number };

export interface Drawn {
  readonly arm: number;
  /** In billionths. */
  readonly propensity: number;
}

/** The arm to which a number from 0 to `WHOLE` - 1 belongs; arms own their numbers in order. */
export function draw(weights: readonly number[], number: number): Drawn {
  let above = 0;
  const arm = weights.findIndex((weight) => (above += weight) > number);
  return { arm, propensity: weights[arm]! };
}

/** How many of the numbers from 0 to `WHOLE` - 1 each arm owns. */
export function weights(rule: Exploration, scores: Float32Array, eligible: readonly boolean[] | null): number[] {
  const best = highest(scores, eligible);
  const allowed = Array.from(scores, (_, arm) => eligible === null || eligible[arm]!);
  if (rule.choice === "softmax") return softmax(rule.temperature, scores, best, allowed);
  const count = allowed.filter(Boolean).length;
  const each = Math.floor(rule.share / count);
  const tied = allowed.flatMap((there, arm) => (there && scores[arm] === best ? [arm] : []));
  const rest = WHOLE - each * count;
  const found = allowed.map((there) => (there ? each : 0));
  tied.forEach((arm, place) => (found[arm]! += Math.floor(rest / tied.length) + (place < rest % tied.length ? 1 : 0)));
  return found;
}

function softmax(temperature: number, scores: Float32Array, best: number, allowed: readonly boolean[]): number[] {
  const table = (exponentials ??= made());
  const parts = allowed.map((there, arm) => {
    const steps = round((best - scores[arm]!) * (STEPS / temperature));
    return there ? table[Math.min(Math.max(Number.isNaN(steps) ? LOWEST : steps, 0), LOWEST)]! : 0n;
  });
  const all = parts.reduce((total, part) => total + part, 0n);
  const spare = BigInt(WHOLE - parts.filter((part) => part > 0n).length);
  const found = parts.map((part) => (part > 0n ? 1 + Number((part * spare) / all) : 0));
  const largest = parts.reduce((arm, part, other) => (part > parts[arm]! ? other : arm), 0);
  found[largest]! += WHOLE - found.reduce((total, one) => total + one, 0);
  return found;
}

let exponentials: readonly bigint[] | undefined;

/** floor(2^31 e^(-k/64)) for k = 0 to 20 * 64, in fixed point of 256 bits: exact, as Python's table is. */
function made(): readonly bigint[] {
  const bits = 256n;
  let step = 0n;
  let term = 1n << bits;
  for (let number = 1n; term !== 0n; number += 1n) {
    step += term;
    term = -term / (number * BigInt(STEPS));
  }
  const found = [1n << bits];
  while (found.length <= LOWEST) found.push((found[found.length - 1]! * step) >> bits);
  return found.map((power) => power >> (bits - 31n));
}
