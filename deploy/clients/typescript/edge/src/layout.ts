import { blake2b } from "./blake2b.js";
import { hex, utf8 } from "./encoding.js";
import { require } from "./errors.js";
import { canonical } from "./features/canonical.js";
import { FeatureSchema, type Blocks, type Declaration } from "./features/schema.js";

/** U: what the absolute units of a slot sum to at most. */
export const UNITS = 4096;

/** What one interaction puts into the sums: units of cells, in as many places as the layout has. */
export interface SlotUnits {
  readonly cells: Int32Array;
  readonly units: Int32Array;
}

/** The public layout of a slot and of the sums; as `hushstream.systems.p2b.contribution.feature_layout`. */
export class FeatureLayout {
  readonly schema: FeatureSchema;
  /** P: of one arm, the constant's included. */
  readonly cells: number;
  /** (cell, units) places of one slot. */
  readonly places: number;
  /** 16 bytes that stand for the declared features and for how a slot's units are divided. */
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

/** A budget divided by shares, in whole units with the sign of the share; what is left goes to the first, one each. */
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
