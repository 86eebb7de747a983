import { EdgeError } from "../errors.js";
import type { Settings } from "./agreement.js";
import type { Ratings } from "./solving.js";

/** Refuse items that do not exist. */
export function requireItems({ items: count }: Settings, items: readonly number[]): void {
  if (!items.every((item) => Number.isInteger(item) && item >= 0 && item < count)) {
    throw new EdgeError(`items: expected numbers from 0 to ${count - 1}, got others`);
  }
}

/** Add ratings; a later one of the same item replaces it. Refuses items and ratings that are not valid. */
export function ratedAlso(settings: Settings, known: Rated, items: readonly number[], ratings: readonly number[]): Rated {
  const { lowest, highest } = settings.scale;
  requireItems(settings, items);
  if (ratings.length !== items.length || !ratings.every((one) => Number.isFinite(one) && one >= lowest && one <= highest)) {
    throw new EdgeError(`ratings: expected one from ${lowest} to ${highest} of each item, got others`);
  }
  const all = new Map(known);
  items.forEach((item, at) => all.set(item, ratings[at]!));
  return [...all];
}

/** Items and their ratings, on the configured scale, in the order in which items came. */
export type Rated = readonly (readonly [number, number])[];

/** Ratings by item, on the scale from 0 to 1. */
export function byItem({ scale: { lowest, highest } }: Settings, rated: Rated): Ratings {
  const sorted = [...rated].sort(([one], [other]) => one - other);
  return { items: sorted.map(([item]) => item), values: sorted.map(([, one]) => (one - lowest) / (highest - lowest)) };
}
