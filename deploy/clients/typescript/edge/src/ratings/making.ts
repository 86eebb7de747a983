/*
 * A slot of one user and round, as `hushstream.systems.bgt.edge.agent` makes it. Computations before the quantisation use
 * real numbers, and privacy does not depend on them: the collector checks norms in whole numbers.
 */

import { sum } from "../elementary.js";
import type { RatingAgreement } from "./agreement.js";
import type { Asked } from "./rounds.js";
import { offsetOf, solve, total, type Ratings } from "./solving.js";

const UNIT = 2 ** 20;
/** Factor by which norms stay below their bound, so that rounding never brings a slot above it. */
const FIT = 1 - 2 ** -30;
const FIRST = 0x9e3779b97f4a7c15n;
const SECOND = 0xbf58476d1ce4e5b9n;
const NOTHING = -1;

interface Made {
  readonly chosen: readonly boolean[];
  readonly values: readonly number[];
  readonly weight: number;
  readonly direction: readonly number[];
}

/** Make the content of a user's slot; without ratings, a null slot. `salt` chooses the ratings if more are there than fit. */
export function slotOf(agreement: RatingAgreement, own: Ratings, asked: Asked, salt: bigint): Uint8Array {
  const { pairs, factors } = agreement.settings.release;
  const { chosen, values, weight, direction } = MAKERS[asked.kind](agreement, own, asked, salt);
  const view = new DataView(new ArrayBuffer(4 * (2 * pairs + 1 + factors)));
  const put = (place: number, value: number): void => view.setInt32(4 * place, value, true);
  for (let place = 0; place < pairs; place += 1) put(place, NOTHING);
  const there = own.items.map((_, at) => at).filter((at) => chosen[at]);
  there.forEach((at, place) => {
    put(place, own.items[at]!);
    put(pairs + place, lattice(values[at]!));
  });
  put(2 * pairs, lattice(weight));
  direction.forEach((value, place) => put(2 * pairs + 1 + place, lattice(value)));
  return new Uint8Array(view.buffer);
}

type Maker = (agreement: RatingAgreement, own: Ratings, asked: Asked, salt: bigint) => Made;

/** Kind A: s (alpha, e) with e = r - mu - b_u and s = min(1, C / ||(alpha, e)||). */
const items: Maker = ({ settings: { release, scale, model } }, own, _, salt) => {
  const above = own.values.map((value) => value - scale.middle);
  const offset = offsetOf(above, model.lone_ridge);
  const rest = above.map((value) => value - offset);
  const chosen = chosenOf(own, rest.map(() => true), release.pairs, salt);
  const alpha = release.count_weight;
  const squares = total(rest.map((value, at) => (chosen[at] ? alpha * alpha + value * value : 0)));
  const shrink = shrinkOf(release.clip, squares);
  return { chosen, values: rest.map((value) => shrink * value), weight: squares > 0 ? shrink * alpha : 0, direction: [] };
};

/** Kind B: z = g (r - mu - b - b_u) at the top items, clipped to C. */
const pairs: Maker = ({ settings: { release, scale, model } }, own, asked, salt) => {
  const place = new Map(Array.from(asked.top, (item, at) => [item, at]));
  const above = own.values.map((value, at) => value - scale.middle - asked.model.biases[own.items[at]!]!);
  const offset = offsetOf(above, model.offset_ridge);
  const rest = above.map((value) => value - offset);
  const chosen = chosenOf(own, own.items.map((item) => place.has(item)), release.pairs, salt);
  const gained = rest.map((value, at) => (chosen[at] ? asked.gains[place.get(own.items[at]!)!]! * value : 0));
  const shrink = shrinkOf(release.clip, total(gained.map((value) => value * value)));
  return { chosen, values: gained.map((value) => shrink * value), weight: 0, direction: [] };
};

/** Kind C: y p^T with y = r - mu - b - b_u and the user's own factors p, clipped to C_c as one matrix. */
const factors: Maker = ({ settings: { release, scale, model } }, own, { model: known }, salt) => {
  const above = own.values.map((value, at) => value - scale.middle - known.biases[own.items[at]!]!);
  const columns = { values: known.factors, width: known.width };
  const [offset, ...taste] = solve(own.items, above, columns, model.offset_ridge, model.factor_ridge).own;
  const rest = above.map((value) => value - offset!);
  const length = Math.sqrt(sum(Float64Array.from(taste, (value) => value * value)));
  const chosen = chosenOf(own, rest.map(() => true), release.pairs, salt);
  const scaled = rest.map((value, at) => (chosen[at] ? length * value : 0));
  const shrink = shrinkOf(release.factor_clip, total(scaled.map((value) => value * value)));
  const direction = taste.map((value) => FIT * (value / (length > 0 ? length : 1)));
  return { chosen, values: scaled.map((value) => shrink * value), weight: 0, direction };
};

const MAKERS: Readonly<Record<Asked["kind"], Maker>> = { items, pairs, factors };

function shrinkOf(clip: number, squares: number): number {
  const norm = Math.sqrt(squares);
  return FIT * Math.min(1, clip / (norm > 0 ? norm : 1));
}

/** Round toward zero, so that no norm grows. */
function lattice(value: number): number {
  return Math.trunc(value * UNIT);
}

/** The ratings of a slot: all candidates, or as many as fit, chosen by a hash of salt and item. */
function chosenOf(own: Ratings, candidates: readonly boolean[], room: number, salt: bigint): readonly boolean[] {
  const there = own.items.map((_, at) => at).filter((at) => candidates[at]);
  if (there.length <= room) return candidates;
  const order = new Map(there.map((at) => [at, mixed(own.items[at]!, salt)]));
  const first = new Set(there.sort((one, other) => (order.get(one)! < order.get(other)! ? -1 : 1)).slice(0, room));
  return candidates.map((_, at) => first.has(at));
}

/** A number for each item that looks random without the salt: the finaliser of splitmix64, which is one-to-one. */
function mixed(item: number, salt: bigint): bigint {
  const first = BigInt.asUintN(64, (BigInt(item) + 1n) * FIRST) ^ salt;
  const second = BigInt.asUintN(64, (first ^ (first >> 30n)) * SECOND);
  return second ^ (second >> 31n);
}
