import { blake2b } from "../blake2b.js";
import { utf8 } from "../encoding.js";
import { BadState, BadValue, Refused } from "../errors.js";
import { canonical } from "./canonical.js";
import { wrong } from "./checks.js";
import { KINDS, type Feature, type Outcome } from "./kinds.js";

/** Features by name, each with its kind and every setting written out, as `hushstream config features` prints them. */
export type Declaration = Readonly<Record<string, Readonly<Record<string, unknown>>>>;

/** Where a feature's block lies among all cells and places. */
export interface Block {
  readonly name: string;
  readonly firstCell: number;
  readonly firstPlace: number;
  readonly places: number;
}

/** The blocks of one row, side by side. */
export interface Blocks {
  /** The cell of each place; if its share is 0, the block's first cell. */
  readonly cells: Int32Array;
  /** The numerators of shares. */
  readonly parts: Int32Array;
  /** The denominators of shares, one for each block. */
  readonly wholes: Int32Array;
  /** The values that a learner sees. */
  readonly values: Float64Array;
}

/** The result of encoding one visit's values as a row. */
export interface EncodedRow {
  readonly row: Uint8Array;
  /** How each value was treated that is unknown, missing or out of range. */
  readonly outcomes: Readonly<Record<string, Outcome>>;
}

interface Column {
  readonly name: string;
  readonly feature: Feature;
  readonly at: number;
}

interface Cross {
  readonly left: Column;
  readonly right: Column;
}

/** What a refusal repeats of an unknown name: neither long numbers nor signs, so no id and no address. */
const NAME = /^[A-Za-z_](?:[A-Za-z_ .-]|[0-9]{1,2}(?![0-9])){0,39}$/;

/** A declaration, which turns values into rows and rows into blocks; as `hushstream.features.schema.FeatureSchema`. */
export class FeatureSchema {
  readonly table: readonly Block[];
  readonly cells: number;
  readonly places: number;
  readonly rowBytes: number;
  /** Digest (16 bytes); equal for two declarations exactly if they are the same. */
  readonly digest: Uint8Array;
  readonly #columns: readonly Column[];
  readonly #byName: ReadonlyMap<string, Column>;
  readonly #crosses: readonly Cross[];

  constructor(declaration: Declaration) {
    const names = Object.keys(declaration).sort();
    const kind = (name: string): unknown => declaration[name]!["kind"];
    const plain = names.filter((name) => kind(name) !== "cross");
    let at = 0;
    this.#columns = plain.map((name) => {
      const make = KINDS[String(kind(name))];
      if (make === undefined) throw new Refused(`features.${name}.kind: expected one that this package knows, got another`);
      const column = { name, feature: make(declaration[name]!), at };
      at += column.feature.bytes;
      return column;
    });
    this.rowBytes = at;
    this.#byName = new Map(this.#columns.map((column) => [column.name, column]));
    const crossed = names.filter((name) => kind(name) === "cross");
    this.#crosses = crossed.map((name) => {
      const [left, right] = (declaration[name]!["of"] as string[]).map((one) => this.#byName.get(one));
      if (!left?.feature.levels || !right?.feature.levels) {
        throw new Refused(`features.${name}.of: expected two declared features with levels, got others`);
      }
      return { left, right };
    });
    const sizes = [
      ...this.#columns.map(({ name, feature }) => ({ name, cells: feature.cells, places: feature.places })),
      ...this.#crosses.map(({ left, right }, place) => ({
        name: crossed[place]!,
        cells: left.feature.levels * right.feature.levels,
        places: 1,
      })),
    ];
    let [cell, place] = [0, 0];
    this.table = sizes.map((one) => {
      const block = { name: one.name, firstCell: cell, firstPlace: place, places: one.places };
      cell += one.cells;
      place += one.places;
      return block;
    });
    [this.cells, this.places] = [cell, place];
    this.digest = blake2b(utf8(canonical({ version: 1, features: declaration })), { person: "hush-features" });
  }

  /** Encode one visit's values by name; an absent, null or undefined one counts as missing. */
  encode(values: Readonly<Record<string, unknown>>): EncodedRow {
    if (typeof values !== "object" || values === null || Array.isArray(values)) {
      throw wrong("features", "names with values", values);
    }
    for (const name of Object.keys(values)) {
      if (this.#byName.has(name)) continue;
      const known = this.#columns.map((column) => column.name).join(", ");
      throw new BadValue(`features: expected names among ${known}, got ${NAME.test(name) ? `"${name}"` : "another"}`);
    }
    const row = new Uint8Array(this.rowBytes);
    const view = new DataView(row.buffer);
    const outcomes: Record<string, Outcome> = {};
    for (const { name, feature, at } of this.#columns) {
      const given = Object.hasOwn(values, name) ? values[name] : null;
      const outcome = feature.encode(name, given, view, at);
      if (outcome !== "known") outcomes[name] = outcome;
    }
    return { row, outcomes };
  }

  /** Refuse bytes that `encode` cannot give. */
  require(row: Uint8Array): void {
    const view = new DataView(row.buffer, row.byteOffset, row.length);
    const good = row.length === this.rowBytes && this.#columns.every(({ feature, at }) => feature.valid(view, at));
    if (!good) throw new BadState(`row: expected ${this.rowBytes} bytes of the declared features, got others`);
  }

  /** The blocks of a row, which `encode` must have given or `require` accepted. */
  blocks(row: Uint8Array): Blocks {
    const view = new DataView(row.buffer, row.byteOffset, row.length);
    const found = {
      cells: new Int32Array(this.places),
      parts: new Int32Array(this.places),
      values: new Float64Array(this.places),
      wholes: new Int32Array(this.table.length),
    };
    this.#columns.forEach(({ feature, at }, number) => {
      const { firstCell: cell, firstPlace: place } = this.table[number]!;
      found.wholes[number] = feature.shares(view, at, { ...found, cell, place });
    });
    this.#crosses.forEach(({ left, right }, number) => {
      const { firstCell, firstPlace } = this.table[this.#columns.length + number]!;
      const one = left.feature.level(view, left.at);
      const other = right.feature.level(view, right.at);
      const known = one >= 0 && other >= 0;
      found.cells[firstPlace] = firstCell + (known ? one * right.feature.levels + other : 0);
      found.parts[firstPlace] = found.values[firstPlace] = known ? 1 : 0;
      found.wholes[this.#columns.length + number] = 1;
    });
    return found;
  }
}
