import { EdgeError } from "./errors.js";
import { UNITS, type FeatureLayout, type SlotUnits } from "./layout.js";

/*
 * The private content of a slot: a report or null, alike in size (`hushstream.systems.p2b.slots`).
 * Little-endian: version, kind, level (uint16), arm (uint32), catalogue (uint32), a cell (uint16) a place, then units
 * (int16) a place.
 */

const VERSION = 2;
const NULL = 0;
const REPORT = 1;
const HEAD = 12;

/** The report of one interaction in a slot. */
export interface Report {
  readonly arm: number;
  readonly level: number;
  readonly catalogue: number;
  readonly units: SlotUnits;
}

/** Bytes of every slot of a layout. */
export function slotBytes(layout: FeatureLayout): number {
  return HEAD + 4 * layout.places;
}

/** Pack the content of a slot (null: a null slot); refuses a report that the shuffler would treat as null. */
export function packSlot(layout: FeatureLayout, report: Report | null): Uint8Array {
  const view = new DataView(new ArrayBuffer(slotBytes(layout)));
  view.setUint8(0, VERSION);
  if (report !== null) {
    requireInside(layout, report);
    view.setUint8(1, REPORT);
    view.setUint16(2, report.level, true);
    view.setUint32(4, report.arm, true);
    view.setUint32(8, report.catalogue, true);
    report.units.cells.forEach((cell, place) => view.setUint16(HEAD + 2 * place, cell, true));
    report.units.units.forEach((units, place) => view.setInt16(HEAD + 2 * (layout.places + place), units, true));
  }
  return new Uint8Array(view.buffer);
}

/** Unpack a slot: a report, null, or "forged" if it is neither (the shuffler treats that as null). */
export function unpackSlot(layout: FeatureLayout, content: Uint8Array): Report | null | "forged" {
  if (content.length !== slotBytes(layout)) {
    throw new EdgeError(`expected ${slotBytes(layout)} bytes of slot content, got ${content.length}`);
  }
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  const kind = view.getUint8(1);
  if (view.getUint8(0) !== VERSION || kind > REPORT) return "forged";
  if (kind === NULL) return content.subarray(2).some((byte) => byte !== 0) ? "forged" : null;
  const places = Array.from({ length: layout.places }, (_, place) => place);
  const cells = Int32Array.from(places, (place) => view.getUint16(HEAD + 2 * place, true));
  const units = Int32Array.from(places, (place) => view.getInt16(HEAD + 2 * (layout.places + place), true));
  const [level, arm, catalogue] = [view.getUint16(2, true), view.getUint32(4, true), view.getUint32(8, true)];
  const report = { arm, level, catalogue, units: { cells, units } };
  return inside(layout, report) ? report : "forged";
}

function requireInside(layout: FeatureLayout, report: Report): void {
  if (!inside(layout, report)) throw new EdgeError("slot: expected arm, level, cells and units of the layout, got others");
}

function inside(layout: FeatureLayout, { arm, level, catalogue, units: { cells, units } }: Report): boolean {
  const whole = (value: number, below: number): boolean => Number.isInteger(value) && value >= 0 && value < below;
  if (!whole(arm, layout.arms) || !whole(level, layout.levels + 1) || !whole(catalogue, 2 ** 32)) return false;
  if (cells.length !== layout.places || units.length !== layout.places) return false;
  return cells.every((cell) => whole(cell, layout.cells)) && units.reduce((sum, one) => sum + Math.abs(one), 0) <= UNITS;
}
