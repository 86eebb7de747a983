import { BadState, EdgeError, Refused } from "../errors.js";
import type { Blocks } from "../features/schema.js";

/*
 * Upper confidence bounds for independent normal coefficients and sparse contexts: `hushstream.learners.sparse`.
 *
 * Models, steps and contexts are float32 as there. Sums are float64 here, in the order of a context's places, and a score
 * is rounded once: scores differ from Python's by rounding alone, and arms with equal histories have equal bits.
 */

/** Interactions of one user that are kept. */
export const MOST_STEPS = 256;

/** One context as the kernels read it: cells in [0, P), and float32 values. */
export interface SparseContext {
  readonly cells: Int32Array;
  readonly values: Float32Array;
}

/** Of the blocks of a row: the constant's cell with value 1, then the blocks. */
export function contextOf(blocks: Blocks): SparseContext {
  const size = blocks.cells.length + 1;
  const found = { cells: new Int32Array(size), values: new Float32Array(size) };
  found.values[0] = 1;
  found.values.set(blocks.values, 1);
  blocks.cells.forEach((cell, place) => (found.cells[place + 1] = cell + 1));
  return found;
}

/** What all users of a model start from. */
export class SparseModel {
  private constructor(
    readonly arms: number,
    readonly cells: number,
    /** (P, K): of each cell the means of all arms. */
    readonly means: Float32Array,
    readonly variances: Float32Array,
    readonly rewardVariance: number,
  ) {}

  /** From (K, P) means and variances; refuses what is not finite, and a variance that is not positive. */
  static of(arms: number, cells: number, means: Float64Array, variances: Float64Array, rewardVariance: number): SparseModel {
    if (means.length !== arms * cells || variances.length !== arms * cells) {
      throw new Refused(`model: expected ${arms * cells} means and variances, got others`);
    }
    const model = new SparseModel(arms, cells, byCell(arms, means), byCell(arms, variances), rewardVariance);
    const finite = [model.means, model.variances].every((table) => table.every(Number.isFinite));
    if (!finite || !variances.every((one) => one > 0) || !(rewardVariance > 0 && rewardVariance < Infinity)) {
      throw new Refused("model: expected finite means and positive finite variances, got others");
    }
    return model;
  }

  /** What a user starts from before any release, for so many blocks beside the constant. */
  static cold(arms: number, cells: number, blocks: number): SparseModel {
    const size = arms * cells;
    return SparseModel.of(arms, cells, new Float64Array(size), new Float64Array(size).fill(1 / (blocks + 1)), 1);
  }
}

function byCell(arms: number, byArm: Float64Array): Float32Array {
  const cells = byArm.length / arms;
  const table = new Float32Array(byArm.length);
  for (let arm = 0; arm < arms; arm += 1) {
    for (let cell = 0; cell < cells; cell += 1) table[cell * arms + arm] = byArm[arm * cells + cell]!;
  }
  return table;
}

/** What one user learned alone: a row for each of their newest `MOST_STEPS` interactions. */
export class OwnSteps {
  readonly arms: number[] = [];
  readonly vectors: Float32Array[] = [];
  readonly gains: number[] = [];
  /** The row of the oldest step; 0 until all rows are taken. */
  oldest = 0;

  append(vector: Float32Array, gain: number, arm: number): void {
    let row = this.arms.length;
    // Rows stay where they are: sums over steps in another order would round otherwise after a restart.
    if (row === MOST_STEPS) [row, this.oldest] = [this.oldest, (this.oldest + 1) % MOST_STEPS];
    this.arms[row] = arm;
    this.vectors[row] = vector;
    this.gains[row] = Math.fround(gain);
  }

  /** As Python packs it: how many steps plus the oldest one's row, arms, vectors, gains. */
  dump(): Uint8Array {
    const [count, cells] = [this.arms.length, this.vectors[0]?.length ?? 0];
    const view = new DataView(new ArrayBuffer(4 + count * (8 + 4 * cells)));
    view.setUint32(0, count + this.oldest, true);
    this.arms.forEach((arm, row) => view.setInt32(4 + 4 * row, arm, true));
    this.vectors.forEach((vector, row) =>
      vector.forEach((value, cell) => view.setFloat32(4 + 4 * (count + row * cells + cell), value, true)),
    );
    this.gains.forEach((gain, row) => view.setFloat32(4 + 4 * (count * (1 + cells) + row), gain, true));
    return new Uint8Array(view.buffer);
  }

  static load(dumped: Uint8Array, arms: number, cells: number): OwnSteps {
    const view = new DataView(dumped.buffer, dumped.byteOffset, dumped.length);
    const told = dumped.length < 4 ? 0 : view.getUint32(0, true);
    const count = Math.min(told, MOST_STEPS);
    if (dumped.length !== 4 + count * (8 + 4 * cells) || told - count >= MOST_STEPS) {
      throw new BadState(`steps: expected bytes of ${count} steps, got others`);
    }
    const own = new OwnSteps();
    const float = (place: number): number => view.getFloat32(4 + 4 * place, true);
    for (let row = 0; row < count; row += 1) {
      const vector = Float32Array.from({ length: cells }, (_, cell) => float(count + row * cells + cell));
      own.append(vector, float(count * (1 + cells) + row), view.getInt32(4 + 4 * row, true));
    }
    own.oldest = told - count;
    const good = own.arms.every((arm) => arm >= 0 && arm < arms) && own.gains.every(Number.isFinite);
    if (!good || !own.vectors.every((vector) => vector.every(Number.isFinite))) {
      throw new BadState("steps: expected arms of the deployment and finite numbers, got others");
    }
    return own;
  }
}

/** The kernels. One serves one model's shape. */
export class SparseUCB {
  readonly #means: Float64Array;
  readonly #variances: Float64Array;
  readonly #scores: Float32Array;

  constructor(readonly arms: number) {
    this.#means = new Float64Array(arms);
    this.#variances = new Float64Array(arms);
    this.#scores = new Float32Array(arms);
  }

  /** The score of every arm, in memory that the next call writes over. */
  scores(model: SparseModel, own: OwnSteps | null, { cells, values }: SparseContext): Float32Array {
    const [arms, means, variances] = [this.arms, this.#means.fill(0), this.#variances.fill(0)];
    for (let place = 0; place < cells.length; place += 1) {
      const value = values[place]!;
      if (value === 0) continue;
      const square = Math.fround(value * value);
      for (let arm = 0, at = cells[place]! * arms; arm < arms; arm += 1, at += 1) {
        means[arm]! += value * model.means[at]!;
        variances[arm]! += square * model.variances[at]!;
      }
    }
    own?.vectors.forEach((vector, row) => {
      const along = dot(vector, cells, values);
      means[own.arms[row]!]! += along * own.gains[row]!;
      variances[own.arms[row]!]! -= along * along;
    });
    // Rounding may carry the square of a vanishing width below zero.
    for (let arm = 0; arm < arms; arm += 1) this.#scores[arm] = means[arm]! + Math.sqrt(Math.max(variances[arm]!, 0));
    return this.#scores;
  }

  /** The arm with the highest score, and how many share it; `tie` draws one of so many. */
  choose(scores: Float32Array, eligible: readonly boolean[] | null, tie: (ties: number) => number): [number, number] {
    const best = highest(scores, eligible);
    const tied: number[] = [];
    scores.forEach((score, arm) => {
      if (score === best && (eligible === null || eligible[arm])) tied.push(arm);
    });
    return [tied[tied.length > 1 ? tie(tied.length) : 0]!, tied.length];
  }

  /** Fold one interaction into what the user learned alone. */
  learn(model: SparseModel, own: OwnSteps, context: SparseContext, arm: number, reward: number): void {
    const { cells, values } = context;
    const sums = new Float64Array(model.cells);
    let mean = 0;
    cells.forEach((cell, place) => {
      const at = cell * this.arms + arm;
      sums[cell]! += Math.fround(values[place]! * model.variances[at]!);
      mean += values[place]! * model.means[at]!;
    });
    own.vectors.forEach((vector, row) => {
      if (own.arms[row] !== arm) return;
      const along = dot(vector, cells, values);
      vector.forEach((one, cell) => (sums[cell]! -= along * one));
      mean += along * own.gains[row]!;
    });
    const spread = cells.reduce((total, cell, place) => total + sums[cell]! * values[place]!, 0);
    const shrink = 1 / Math.sqrt(model.rewardVariance + Math.max(spread, 0));
    own.append(Float32Array.from(sums, (one) => one * shrink), (reward - mean) * shrink, arm);
  }
}

/** The highest score of an eligible arm. */
export function highest(scores: Float32Array, eligible: readonly boolean[] | null): number {
  let best = -Infinity;
  let some = false;
  scores.forEach((score, arm) => {
    if (eligible !== null && !eligible[arm]) return;
    some = true;
    if (!(score <= best)) best = score;
  });
  if (!some) throw new EdgeError(`expected at least one of ${scores.length} items to be eligible, got none`);
  if (!Number.isFinite(best)) throw new EdgeError("expected finite scores, got NaN or infinity");
  return best;
}

function dot(vector: Float32Array, cells: Int32Array, values: Float32Array): number {
  let total = 0;
  for (let place = 0; place < cells.length; place += 1) total += vector[cells[place]!]! * values[place]!;
  return total;
}
