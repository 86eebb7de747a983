import { BadState, EdgeError, Refused } from "../errors.js";
import type { Blocks } from "../features/schema.js";

/*
 * Upper confidence bounds for independent normal coefficients and sparse contexts: `hushstream.learners.sparse`.
 *
 * Models, steps and contexts are float32, as there. Sums are float64 here, in the order of a context's places, and a
 * score is rounded once. So scores differ from Python's only by rounding, and arms with equal histories have equal
 * bits.
 */

/** How many interactions of one user are kept. */
export const MOST_STEPS = 256;

/** One context, as the kernels read it: cells in [0, P), and float32 values. */
export interface SparseContext {
  readonly cells: Int32Array;
  readonly values: Float32Array;
}

/** The context of a row's blocks: the constant's cell with value 1, then the blocks. */
export function contextOf(blocks: Blocks): SparseContext {
  const size = blocks.cells.length + 1;
  const found = { cells: new Int32Array(size), values: new Float32Array(size) };
  found.values[0] = 1;
  found.values.set(blocks.values, 1);
  blocks.cells.forEach((cell, place) => (found.cells[place + 1] = cell + 1));
  return found;
}

/** The shared model from which users start. */
export class SparseModel {
  private constructor(
    readonly arms: number,
    readonly cells: number,
    /** (P, K): for each cell, the means of all arms. */
    readonly means: Float32Array,
    readonly variances: Float32Array,
    readonly rewardVariance: number,
  ) {}

  /** Make a model from (K, P) means and variances; refuses numbers that are not finite, and variances that are not positive. */
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

  /** The model from which a user starts before any release, for so many blocks besides the constant. */
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

/** The part of the model that one user learned alone: a row for each of their newest `MOST_STEPS` interactions. */
export class OwnSteps {
  readonly arms: number[] = [];
  readonly gains: number[] = [];
  /** The row of the oldest step; 0 until all rows are taken. */
  oldest = 0;
  /** For each cell, the values of all rows side by side, because a context has few cells; there is room for `#room` rows. */
  #byCell: Float32Array;
  #room = 8;

  constructor(readonly cells: number) {
    this.#byCell = new Float32Array(cells * this.#room);
  }

  append(vector: Float32Array, gain: number, arm: number): void {
    let row = this.arms.length;
    // Rows keep their places: in another order, sums over steps would round differently after a restart.
    if (row === MOST_STEPS) [row, this.oldest] = [this.oldest, (this.oldest + 1) % MOST_STEPS];
    if (row === this.#room) this.#grow();
    this.arms[row] = arm;
    for (let cell = 0, at = row; cell < this.cells; cell += 1, at += this.#room) this.#byCell[at] = vector[cell]!;
    this.gains[row] = Math.fround(gain);
  }

  /** For each row, add up a context's places in their order, into `sums`, which has room for all rows. */
  along({ cells, values }: SparseContext, sums: Float64Array): void {
    const count = this.arms.length;
    sums.fill(0, 0, count);
    for (let place = 0; place < cells.length; place += 1) {
      const value = values[place]!;
      if (value === 0) continue;
      for (let row = 0, at = cells[place]! * this.#room; row < count; row += 1, at += 1) {
        sums[row]! += this.#byCell[at]! * value;
      }
    }
  }

  /** Subtract a multiple of a row's vector from sums over cells. */
  subtract(row: number, along: number, sums: Float64Array): void {
    for (let cell = 0, at = row; cell < this.cells; cell += 1, at += this.#room) sums[cell]! -= along * this.#byCell[at]!;
  }

  /** Pack as Python does: the number of steps plus the oldest one's row, then arms, vectors and gains. */
  dump(): Uint8Array {
    const [count, cells] = [this.arms.length, this.cells];
    const view = new DataView(new ArrayBuffer(4 + count * (8 + 4 * cells)));
    view.setUint32(0, count + this.oldest, true);
    this.arms.forEach((arm, row) => view.setInt32(4 + 4 * row, arm, true));
    for (let row = 0, to = 4 + 4 * count; row < count; row += 1) {
      for (let at = row; at < this.#byCell.length; at += this.#room, to += 4) view.setFloat32(to, this.#byCell[at]!, true);
    }
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
    const own = new OwnSteps(cells);
    const float = (place: number): number => view.getFloat32(4 + 4 * place, true);
    for (let row = 0; row < count; row += 1) {
      const vector = Float32Array.from({ length: cells }, (_, cell) => float(count + row * cells + cell));
      own.append(vector, float(count * (1 + cells) + row), view.getInt32(4 + 4 * row, true));
    }
    own.oldest = told - count;
    const good = own.arms.every((arm) => arm >= 0 && arm < arms) && own.gains.every(Number.isFinite);
    if (!good || !own.#byCell.every(Number.isFinite)) {
      throw new BadState("steps: expected arms of the deployment and finite numbers, got others");
    }
    return own;
  }

  #grow(): void {
    const [before, room] = [this.#byCell, this.#room];
    this.#room = Math.min(2 * room, MOST_STEPS);
    this.#byCell = new Float32Array(this.cells * this.#room);
    for (let cell = 0; cell < this.cells; cell += 1) {
      this.#byCell.set(before.subarray(cell * room, (cell + 1) * room), cell * this.#room);
    }
  }
}

/** The kernels, for models of one shape. */
export class SparseUCB {
  readonly #means: Float64Array;
  readonly #variances: Float64Array;
  readonly #scores: Float32Array;
  readonly #along = new Float64Array(MOST_STEPS);

  constructor(readonly arms: number) {
    this.#means = new Float64Array(arms);
    this.#variances = new Float64Array(arms);
    this.#scores = new Float32Array(arms);
  }

  /** Compute the score of every arm, in memory that the next call overwrites. */
  scores(model: SparseModel, own: OwnSteps | null, context: SparseContext): Float32Array {
    const { cells, values } = context;
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
    own?.along(context, this.#along);
    own?.arms.forEach((arm, row) => {
      const along = this.#along[row]!;
      means[arm]! += along * own.gains[row]!;
      variances[arm]! -= along * along;
    });
    // By rounding, the square of a width near 0 may be negative.
    for (let arm = 0; arm < arms; arm += 1) this.#scores[arm] = means[arm]! + Math.sqrt(Math.max(variances[arm]!, 0));
    return this.#scores;
  }

  /** Choose the arm with the highest score; returns it, and how many arms have this score. `tie` draws among these. */
  choose(scores: Float32Array, eligible: readonly boolean[] | null, tie: (ties: number) => number): [number, number] {
    const best = highest(scores, eligible);
    const tied: number[] = [];
    scores.forEach((score, arm) => {
      if (score === best && (eligible === null || eligible[arm])) tied.push(arm);
    });
    return [tied[tied.length > 1 ? tie(tied.length) : 0]!, tied.length];
  }

  /** Add one interaction to what the user learned alone. */
  learn(model: SparseModel, own: OwnSteps, context: SparseContext, arm: number, reward: number): void {
    const { cells, values } = context;
    const sums = new Float64Array(model.cells);
    let mean = 0;
    cells.forEach((cell, place) => {
      const at = cell * this.arms + arm;
      sums[cell]! += Math.fround(values[place]! * model.variances[at]!);
      mean += values[place]! * model.means[at]!;
    });
    own.along(context, this.#along);
    own.arms.forEach((other, row) => {
      if (other !== arm) return;
      own.subtract(row, this.#along[row]!, sums);
      mean += this.#along[row]! * own.gains[row]!;
    });
    const spread = cells.reduce((total, cell, place) => total + sums[cell]! * values[place]!, 0);
    const shrink = 1 / Math.sqrt(model.rewardVariance + Math.max(spread, 0));
    const vector = new Float32Array(model.cells);
    for (let cell = 0; cell < model.cells; cell += 1) vector[cell] = sums[cell]! * shrink;
    own.append(vector, (reward - mean) * shrink, arm);
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
