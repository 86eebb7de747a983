/*
 * The kinds of features, as in `hushstream.features.kinds`: they turn values into bytes of a row, and a row's bytes
 * into blocks. Shares are fractions of whole numbers, so blocks and units have the same bits everywhere.
 */

import { log, round, sum } from "../elementary.js";
import { BadValue } from "../errors.js";
import { byCodePoint, finite, text, vector, wrong } from "./checks.js";

/** How one value was treated; only this device knows it. */
export type Outcome = "known" | "missing" | "unknown" | "clipped";

/** Receives a value's shares: places of the row's blocks from `place` on, cells from `cell` on. */
export interface Target {
  cells: Uint16Array | Int32Array;
  parts: Int32Array;
  values: Float64Array;
  place: number;
  cell: number;
}

/** One declared feature. */
export interface Feature {
  /** Number of bytes of a value in a row. */
  readonly bytes: number;
  readonly cells: number;
  readonly places: number;
  /** How many levels a cross gets from it; 0 if it cannot be in a cross. */
  readonly levels: number;
  /** Write one value; null and undefined count as missing. */
  encode(name: string, value: unknown, into: DataView, at: number): Outcome;
  /** Whether `encode` can write these bytes. */
  valid(row: DataView, at: number): boolean;
  /** Write the shares of a valid value; returns their denominator. */
  shares(row: DataView, at: number, to: Target): number;
  /** The level of a valid value; -1 if it has none. */
  level(row: DataView, at: number): number;
}

const STEPS = 65534;
const MISSING_STEP = 65535;
const DAY_STEPS = 43200;
const TIME_NODES = 6;
const DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
/** In a cross, a feature with more levels has its last ones merged into one. */
const CROSS_LEVELS = 6;
const UNIT = 32767;

type Settings = Readonly<Record<string, unknown>>;

function put(to: Target, offset: number, cell: number, part: number, whole: number): void {
  const place = to.place + offset;
  to.cells[place] = to.cell + cell;
  to.parts[place] = part;
  to.values[place] = part / whole;
}

function missing(value: unknown): value is null | undefined {
  return value === null || value === undefined;
}

function category(settings: Settings): Feature {
  const numbers = numbered(settings["vocabulary"]);
  const other = numbers.size;
  return {
    bytes: 2,
    cells: other + 1,
    places: 1,
    levels: Math.min(other + 1, CROSS_LEVELS),
    encode(name, value, into, at) {
      const number = missing(value) ? undefined : numbers.get(text(name, value, "a text"));
      into.setUint16(at, number ?? other, true);
      return missing(value) ? "missing" : number === undefined ? "unknown" : "known";
    },
    valid: (row, at) => row.getUint16(at, true) <= other,
    shares(row, at, to) {
      put(to, 0, row.getUint16(at, true), 1, 1);
      return 1;
    },
    level: (row, at) => Math.min(row.getUint16(at, true), CROSS_LEVELS - 1),
  };
}

function number(settings: Settings): Feature {
  const [low, high] = settings["range"] as [number, number];
  const [logarithmic, nodes] = [settings["scale"] === "log", settings["nodes"] as number];
  return {
    bytes: 2,
    cells: nodes + 1,
    places: 2,
    levels: CROSS_LEVELS,
    encode(name, value, into, at) {
      if (missing(value)) {
        into.setUint16(at, MISSING_STEP, true);
        return "missing";
      }
      const found = finite(name, value, "a finite number");
      const clipped = Math.min(Math.max(found, low), high);
      const place = logarithmic ? log(clipped / low) / log(high / low) : (clipped - low) / (high - low);
      into.setUint16(at, Math.min(Math.max(round(place * STEPS), 0), STEPS), true);
      return found === clipped ? "known" : "clipped";
    },
    valid: () => true,
    shares(row, at, to) {
      const step = row.getUint16(at, true);
      const place = step === MISSING_STEP ? 0 : step * (nodes - 1);
      const [node, right] = [Math.floor(place / STEPS), place % STEPS];
      put(to, 0, step === MISSING_STEP ? nodes : node, STEPS - right, STEPS);
      put(to, 1, right > 0 ? node + 1 : 0, right, STEPS);
      return STEPS;
    },
    level: (row, at) => Math.floor((row.getUint16(at, true) * (CROSS_LEVELS - 1)) / MISSING_STEP),
  };
}

function boolean(): Feature {
  return {
    bytes: 1,
    cells: 3,
    places: 1,
    levels: 3,
    encode(name, value, into, at) {
      if (!missing(value) && typeof value !== "boolean") throw wrong(name, "true or false", value);
      into.setUint8(at, missing(value) ? 2 : Number(value));
      return missing(value) ? "missing" : "known";
    },
    valid: (row, at) => row.getUint8(at) <= 2,
    shares(row, at, to) {
      put(to, 0, row.getUint8(at), 1, 1);
      return 1;
    },
    level: (row, at) => row.getUint8(at),
  };
}

function timeOfDay(): Feature {
  return {
    bytes: 2,
    cells: TIME_NODES,
    places: 2,
    levels: TIME_NODES,
    encode(name, value, into, at) {
      if (missing(value)) {
        into.setUint16(at, MISSING_STEP, true);
        return "missing";
      }
      const hours = typeof value === "string" ? clock(name, value) : finite(name, value, "hours or HH:MM");
      const around = hours % 24;
      into.setUint16(at, round((around < 0 ? around + 24 : around) * (DAY_STEPS / 24)) % DAY_STEPS, true);
      return hours >= 0 && hours < 24 ? "known" : "clipped";
    },
    valid(row, at) {
      const step = row.getUint16(at, true);
      return step < DAY_STEPS || step === MISSING_STEP;
    },
    shares(row, at, to) {
      const step = row.getUint16(at, true);
      const known = step === MISSING_STEP ? 0 : 1;
      const place = step * known * TIME_NODES;
      const [node, right] = [Math.floor(place / DAY_STEPS), place % DAY_STEPS];
      put(to, 0, node, (DAY_STEPS - right) * known, DAY_STEPS);
      put(to, 1, right > 0 ? (node + 1) % TIME_NODES : 0, right, DAY_STEPS);
      return DAY_STEPS;
    },
    level(row, at) {
      const step = row.getUint16(at, true);
      return step === MISSING_STEP ? -1 : Math.floor((step * TIME_NODES) / DAY_STEPS);
    },
  };
}

function dayOfWeek(): Feature {
  const expected = "a day by its name, or its number from 1 for Monday to 7";
  return {
    bytes: 1,
    cells: DAYS.length,
    places: 1,
    levels: DAYS.length,
    encode(name, value, into, at) {
      let day = DAYS.length;
      if (typeof value === "string") {
        const word = value.slice(0, 12).toLowerCase();
        day = DAYS.findIndex((one) => word === one || word === one.slice(0, 3));
        if (day < 0) throw new BadValue(`${name}: expected ${expected}, got another text`);
      } else if (!missing(value)) {
        day = finite(name, value, expected) - 1;
        if (!Number.isInteger(day) || day < 0 || day >= DAYS.length) {
          throw new BadValue(`${name}: expected ${expected}, got another number`);
        }
      }
      into.setUint8(at, day);
      return missing(value) ? "missing" : "known";
    },
    valid: (row, at) => row.getUint8(at) <= DAYS.length,
    shares(row, at, to) {
      const day = row.getUint8(at);
      const known = day < DAYS.length;
      put(to, 0, known ? day : 0, known ? 1 : 0, 1);
      return 1;
    },
    level(row, at) {
      const day = row.getUint8(at);
      return day < DAYS.length ? day : -1;
    },
  };
}

function tags(settings: Settings): Feature {
  const numbers = numbered(settings["vocabulary"]);
  const most = settings["most"] as number;
  const bytes = Math.ceil(numbers.size / 8);
  function* known(row: DataView, at: number): Generator<number> {
    for (let tag = 0; tag < 8 * bytes; tag += 1) if (row.getUint8(at + (tag >> 3)) & (1 << (tag & 7))) yield tag;
  }
  return {
    bytes,
    cells: numbers.size + 1,
    places: most,
    levels: 0,
    encode(name, value, into, at) {
      for (let byte = 0; byte < bytes; byte += 1) into.setUint8(at + byte, 0);
      if (missing(value)) return "missing";
      if (!Array.isArray(value) && !(value instanceof Set)) throw wrong(name, "a list of texts", value);
      const given = Array.from(value as Iterable<unknown>, (entry) => text(name, entry, "a list of texts"));
      const found = new Set<number>();
      let strange = false;
      for (const entry of value instanceof Set ? given.sort(byCodePoint) : given) {
        const tag = numbers.get(entry);
        if (tag === undefined) strange = true;
        else found.add(tag);
      }
      for (const tag of [...found].slice(0, most)) {
        into.setUint8(at + (tag >> 3), into.getUint8(at + (tag >> 3)) | (1 << (tag & 7)));
      }
      return found.size > most ? "clipped" : strange ? "unknown" : "known";
    },
    valid(row, at) {
      const found = [...known(row, at)];
      return found.length <= most && found.every((tag) => tag < numbers.size);
    },
    shares(row, at, to) {
      const found = [...known(row, at)];
      const whole = Math.max(found.length, 1);
      if (!found.length) found.push(numbers.size);
      for (let place = 0; place < most; place += 1) {
        const there = place < found.length;
        put(to, place, there ? found[place]! : 0, there ? 1 : 0, whole);
        // A learner sees a vector of length 1: with plain shares, a visit with many tags would have almost no weight.
        if (there) to.values[to.place + place] = 1 / Math.sqrt(whole);
      }
      return whole;
    },
    level: () => -1,
  };
}

function embedding(settings: Settings): Feature {
  const count = settings["dimension"] as number;
  return {
    ...coordinates(count, true),
    encode(name, value, into, at) {
      const found = missing(value) ? new Float64Array(count) : vector(name, value, count);
      const largest = found.reduce((most, entry) => Math.max(most, Math.abs(entry)), 0);
      // Scaled first, so that the squares of large coordinates do not overflow.
      const squares = found.map((entry) => (entry / largest) * (entry / largest));
      const length = largest ? largest * Math.sqrt(sum(squares)) : 0;
      found.forEach((entry, place) =>
        into.setInt16(at + 2 * place, Math.trunc((entry / Math.max(length, 1)) * UNIT), true),
      );
      return missing(value) ? "missing" : length > 1 ? "clipped" : "known";
    },
    valid(row, at) {
      let squares = 0;
      for (let place = 0; place < count; place += 1) squares += row.getInt16(at + 2 * place, true) ** 2;
      return squares <= UNIT ** 2;
    },
  };
}

function histogram(settings: Settings): Feature {
  const count = settings["bins"] as number;
  return {
    ...coordinates(count, false),
    encode(name, value, into, at) {
      const found = missing(value) ? new Float64Array(count) : vector(name, value, count);
      if (found.some((entry) => entry < 0)) {
        throw new BadValue(`${name}: expected ${count} numbers of at least 0, got one below`);
      }
      const largest = found.reduce((most, entry) => Math.max(most, entry), 0);
      const shares = largest ? found.map((entry) => entry / largest) : found;
      const whole = largest ? sum(shares) : 1;
      shares.forEach((share, place) => into.setUint16(at + 2 * place, round((share / whole) * STEPS), true));
      return largest ? "known" : "missing";
    },
    valid: () => true,
  };
}

function coordinates(count: number, signed: boolean): Omit<Feature, "encode" | "valid"> {
  return {
    bytes: 2 * count,
    cells: count,
    places: count,
    levels: 0,
    shares(row, at, to) {
      let whole = 0;
      for (let place = 0; place < count; place += 1) {
        const part = signed ? row.getInt16(at + 2 * place, true) : row.getUint16(at + 2 * place, true);
        to.cells[to.place + place] = to.cell + place;
        to.parts[to.place + place] = part;
        whole += Math.abs(part);
      }
      whole = Math.max(whole, 1);
      for (let place = to.place; place < to.place + count; place += 1) {
        to.values[place] = to.parts[place]! / (signed ? UNIT : whole);
      }
      return whole;
    },
    level: () => -1,
  };
}

/** Every kind by its name in a declaration, except crosses, which are in no row. */
export const KINDS: Readonly<Record<string, (settings: Settings) => Feature>> = {
  category,
  number,
  boolean,
  time_of_day: timeOfDay,
  day_of_week: dayOfWeek,
  tags,
  embedding,
  histogram,
};

function numbered(vocabulary: unknown): Map<string, number> {
  return new Map((vocabulary as string[]).map((entry, place) => [entry, place]));
}

function clock(name: string, value: string): number {
  const found = /^(\d{1,2}):(\d{1,2})$/.exec(value);
  const [hours, minutes] = [Number(found?.[1]), Number(found?.[2])];
  if (found === null || minutes > 59 || 60 * hours + minutes > 24 * 60) throw new BadValue(`${name}: expected hours or HH:MM, got another text`);
  return hours + minutes / 60;
}
