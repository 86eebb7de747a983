/* Computations on a device for its own user, in the order in which `hushstream.systems.bgt.edge` adds up. */

import { sum } from "../elementary.js";
import type { RatingAgreement } from "./agreement.js";
import type { Model } from "./rounds.js";

/** One user's ratings by item, on the scale from 0 to 1. */
export interface Ratings {
  readonly items: readonly number[];
  readonly values: readonly number[];
}

/** Explanatory variables of items, row by row. */
export interface Columns {
  readonly values: Float64Array;
  readonly width: number;
}

/** Add one number after another, as numpy's bincount does. */
export function total(values: readonly number[]): number {
  return values.reduce((all, value) => all + value, 0);
}

/** The mean of `rest`, shrunk toward 0 as if by `ridge` more ratings of 0. */
export function offsetOf(rest: readonly number[], ridge: number): number {
  return total(rest) / (rest.length + ridge);
}

/** A ridge regression: the constant and a weight for each feature; each rating minus its prediction by a fit of the others. */
export interface Fitted {
  readonly own: readonly number[];
  readonly leftOut: readonly number[];
}

/** Ridge regression of `rest` on [1, features of the item]. */
export function solve(items: readonly number[], rest: readonly number[], of: Columns, offsetRidge: number, ridge: number): Fitted {
  const width = of.width + 1;
  if (width === 1) {
    const offset = offsetOf(rest, offsetRidge);
    return { own: [offset], leftOut: rest.map((value) => (value - offset) / (1 - 1 / (rest.length + offsetRidge))) };
  }
  const rows = items.map((item) => Float64Array.of(1, ...of.values.subarray(item * of.width, (item + 1) * of.width)));
  const summed = (value: (row: Float64Array, place: number) => number): number => reduced(Float64Array.from(rows, value));
  const solved = eliminated(
    Array.from({ length: width }, (_, one) => {
      const gram = Array.from({ length: width }, (_, other) => summed((row) => row[one]! * row[other]!));
      gram[one]! += one === 0 ? offsetRidge : ridge;
      return Float64Array.of(...gram, summed((row, place) => row[one]! * rest[place]!), ...rows.map((row) => row[one]!));
    }),
  );
  const times = (row: Float64Array, place: number): number => sum(row.map((value, at) => value * solved[at]![place]!));
  const leftOut = rest.map((value, at) => (value - times(rows[at]!, 0)) / (1 - times(rows[at]!, at + 1)));
  return { own: solved.map(([constant]) => constant!), leftOut };
}

/** The sum in the order of numpy's reduceat: all but the first pairwise, then both. */
function reduced(values: Float64Array): number {
  return values.length === 0 ? 0 : values.length === 1 ? values[0]! : values[0]! + sum(values.subarray(1));
}

/** The solutions of linear equations, each with its right sides at its end; by elimination with the largest pivots. */
function eliminated(rows: Float64Array[]): Float64Array[] {
  for (let at = 0; at < rows.length; at += 1) {
    let pivot = at;
    for (let row = at + 1; row < rows.length; row += 1) if (Math.abs(rows[row]![at]!) > Math.abs(rows[pivot]![at]!)) pivot = row;
    [rows[at], rows[pivot]] = [rows[pivot]!, rows[at]!];
    const first = (rows[at] = rows[at]!.map((value, _, all) => value / all[at]!));
    rows.forEach((row, number) => {
      const factor = row[at]!;
      if (number !== at) rows[number] = row.map((value, place) => value - factor * first[place]!);
    });
  }
  return rows.map((row) => row.subarray(rows.length));
}

const PRIOR_RATINGS = 20;
const PRIOR_WEIGHT = 0.8;

/** Predicted ratings of items on the configured scale, by the own ratings mixed with the model; nothing is sent. */
export function predicted(agreement: RatingAgreement, own: Ratings, model: Model, items: readonly number[]): number[] {
  const { scale, items: count } = agreement.settings;
  const nothing = { biases: new Float64Array(count), factors: new Float64Array(0), width: 0 };
  const [local, shared] = [under(agreement, own, nothing, items), under(agreement, own, model, items)];
  const gaps = local.leftOut.map((value, at) => value - shared.leftOut[at]!);
  const prior = PRIOR_RATINGS * variance(model.biases);
  const most = total(gaps.map((gap) => gap * gap)) + prior;
  const gained = total(gaps.map((gap, at) => local.leftOut[at]! * gap)) + PRIOR_WEIGHT * prior;
  const weight = most > 0 ? within(gained / most) : PRIOR_WEIGHT;
  return local.found.map((one, at) => {
    const mixed = within(scale.middle + one + weight * (shared.found[at]! - one));
    return scale.lowest + mixed * (scale.highest - scale.lowest);
  });
}

/** What one user's fit under a model finds of items, above the middle of the scale, and its leave-one-out residuals. */
function under({ settings, features }: RatingAgreement, own: Ratings, model: Model, items: readonly number[]) {
  const { scale, model: parameters } = settings;
  const columns = ownColumns(model, { values: features, width: settings.features }, parameters.feature_scale, settings.items);
  const rest = own.values.map((value, place) => value - scale.middle - model.biases[own.items[place]!]!);
  const ridge = model.width > 0 ? parameters.offset_ridge : parameters.lone_ridge;
  const fitted = solve(own.items, rest, columns, ridge, parameters.factor_ridge);
  const found = items.map((item) => {
    const row = columns.values.subarray(item * columns.width, (item + 1) * columns.width);
    return model.biases[item]! + fitted.own[0]! + sum(row.map((value, at) => value * fitted.own[at + 1]!));
  });
  return { found, leftOut: fitted.leftOut };
}

function within(value: number): number {
  return Math.min(Math.max(value, 0), 1);
}

function variance(values: Float64Array): number {
  const mean = sum(values) / values.length;
  return sum(values.map((value) => (value - mean) ** 2)) / values.length;
}

/** The items' factors and public features. */
function ownColumns({ factors, width }: Model, open: Columns, weight: number, items: number): Columns {
  const both = width + open.width;
  const values = new Float64Array(items * both);
  for (let item = 0; item < items; item += 1) {
    values.set(factors.subarray(item * width, (item + 1) * width), item * both);
    for (let at = 0; at < open.width; at += 1) values[item * both + width + at] = weight * open.values[item * open.width + at]!;
  }
  return { values, width: both };
}
