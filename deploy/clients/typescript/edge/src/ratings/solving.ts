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

/** Ridge regression of `rest` on [1, features of the item]: the constant, then a weight for each feature. */
export function solve(items: readonly number[], rest: readonly number[], of: Columns, offsetRidge: number, ridge: number): Float64Array {
  const width = of.width + 1;
  if (width === 1) return Float64Array.of(offsetOf(rest, offsetRidge));
  const column = (place: number, at: number): number => (at === 0 ? 1 : of.values[items[place]! * of.width + at - 1]!);
  const summed = (value: (place: number) => number): number => reduced(Float64Array.from(items, (_, place) => value(place)));
  const whole = Array.from({ length: width }, (_, one) =>
    Float64Array.from({ length: width + 1 }, (_, other) => {
      if (other === width) return summed((place) => column(place, one) * rest[place]!);
      const gram = summed((place) => column(place, one) * column(place, other));
      return one === other ? gram + (one === 0 ? offsetRidge : ridge) : gram;
    }),
  );
  return eliminated(whole);
}

/** The sum in the order of numpy's reduceat: all but the first pairwise, then both. */
function reduced(values: Float64Array): number {
  return values.length === 0 ? 0 : values.length === 1 ? values[0]! : values[0]! + sum(values.subarray(1));
}

/** The solution of linear equations, each with its right side at its end; by elimination with the largest pivots. */
function eliminated(rows: Float64Array[]): Float64Array {
  const size = rows.length;
  for (let at = 0; at < size; at += 1) {
    let pivot = at;
    for (let row = at + 1; row < size; row += 1) if (Math.abs(rows[row]![at]!) > Math.abs(rows[pivot]![at]!)) pivot = row;
    [rows[at], rows[pivot]] = [rows[pivot]!, rows[at]!];
    for (let row = at + 1; row < size; row += 1) {
      const factor = rows[row]![at]! / rows[at]![at]!;
      for (let place = at; place <= size; place += 1) rows[row]![place]! -= factor * rows[at]![place]!;
    }
  }
  const found = new Float64Array(size);
  for (let row = size - 1; row >= 0; row -= 1) {
    let left = rows[row]![size]!;
    for (let place = row + 1; place < size; place += 1) left -= rows[row]![place]! * found[place]!;
    found[row] = left / rows[row]![row]!;
  }
  return found;
}

/** Predicted ratings of items on the configured scale; nothing is sent. */
export function predicted({ settings, features }: RatingAgreement, own: Ratings, model: Model, items: readonly number[]): number[] {
  const { scale, model: parameters } = settings;
  const columns = ownColumns(model, { values: features, width: settings.features }, parameters.feature_scale, settings.items);
  const rest = own.values.map((value, place) => value - scale.middle - model.biases[own.items[place]!]!);
  const ridge = model.width > 0 ? parameters.offset_ridge : parameters.lone_ridge;
  const fitted = solve(own.items, rest, columns, ridge, parameters.factor_ridge);
  return items.map((item) => {
    const row = columns.values.subarray(item * columns.width, (item + 1) * columns.width);
    const taste = sum(row.map((value, at) => value * fitted[at + 1]!));
    const found = scale.middle + model.biases[item]! + fitted[0]! + taste;
    return scale.lowest + Math.min(Math.max(found, 0), 1) * (scale.highest - scale.lowest);
  });
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
