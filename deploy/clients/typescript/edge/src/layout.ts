import { blake2b } from "./blake2b.js";
import { hex, utf8 } from "./encoding.js";
import { require } from "./errors.js";
import { canonical } from "./features/canonical.js";
import { FeatureSchema, type Blocks, type Declaration } from "./features/schema.js";

/** U: the largest sum of the absolute units of a slot. */
export const UNITS = 4096;

/** The contribution of one interaction to the sums: units of cells, in as many places as the layout has. */
export interface SlotUnits {
  readonly cells: Int32Array;
  readonly units: Int32Array;
}

/** The public layout of a slot and of the sums; as `hushstream.systems.p2b.slots`. */
export class FeatureLayout {
  readonly schema: FeatureSchema;
  /** P: number of cells of one arm, with that of the constant. */
  readonly cells: number;
  /** Number of places of one slot; each holds a cell and its units. */
  readonly places: number;
  /** Digest (16 bytes) of the declared features and of how a slot's units are divided among them. */
  readonly digest: Uint8Array;

  /**
   * @param arms K, the capacity of the catalogue.
   * @param levels M, reward levels above 0.
   * @param budgets units of each block, the constant's first.
   */
  constructor(
    declaration: Declaration,
    readonly arms: number,
    readonly levels: number,
    readonly budgets: readonly number[],
  ) {
    this.schema = new FeatureSchema(declaration);
    this.cells = this.schema.cells + 1;
    this.places = this.schema.places + 1;
    const blocks = this.schema.table.length + 1;
    const total = budgets.reduce((one, other) => one + other, 0);
    const good = budgets.length === blocks && budgets.every((one) => Number.isInteger(one) && one > 0) && total <= UNITS;
    require("budgets", good, `${blocks} positive ones of at most ${UNITS} units together`);
    const said = { features: hex(this.schema.digest), arms, levels, budgets };
    this.digest = blake2b(utf8(canonical(said)), { person: "hush-layout" });
  }

  /** The units of an interaction, from the blocks of its context. */
  unitsOf(blocks: Blocks): SlotUnits {
    const cells = new Int32Array(this.places);
    const units = new Int32Array(this.places);
    units[0] = this.budgets[0]!;
    blocks.cells.forEach((cell, place) => (cells[place + 1] = cell + 1));
    this.schema.table.forEach(({ firstPlace, places }, number) => {
      const parts = blocks.parts.subarray(firstPlace, firstPlace + places);
      divide(parts, blocks.wholes[number]!, this.budgets[number + 1]!, units.subarray(firstPlace + 1));
    });
    return { cells, units };
  }
}

/**
 * Divide a budget by shares, in whole units with the sign of the share; units that are left go to the first shares, one
 * each.
 */
function divide(parts: Int32Array, whole: number, budget: number, into: Int32Array): void {
  let left = budget;
  parts.forEach((part, place) => {
    into[place] = Math.floor((Math.abs(part) * budget) / whole);
    left -= into[place]!;
  });
  parts.forEach((part, place) => {
    if (part !== 0 && left > 0) {
      into[place]! += 1;
      left -= 1;
    }
    into[place]! *= Math.sign(part);
  });
}
