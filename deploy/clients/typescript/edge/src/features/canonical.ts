/*
 * The canonical form of declarations and statements, as Python writes it; digests are computed over it.
 */

/** Fields of declared features and of statements that are floats in Python, whatever their value. */
const FLOATS: ReadonlySet<string> = new Set(["range", "reward_variance"]);

/** JSON as `json.dumps(..., sort_keys=True, separators=(",", ":"))`. */
export function canonical(value: unknown, floats = FLOATS, float = false): string {
  if (typeof value === "number") return float ? pythonFloat(value) : String(value);
  if (typeof value === "string") return ascii(value);
  if (value === null || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return `[${value.map((one) => canonical(one, floats, float)).join(",")}]`;
  const entries = Object.entries(value as object).sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${entries.map(([key, one]) => `${ascii(key)}:${canonical(one, floats, floats.has(key))}`).join(",")}}`;
}

function ascii(text: string): string {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A float as Python's `repr` writes it: the same digits as in JavaScript, but an exponent for other powers of ten. */
function pythonFloat(value: number): string {
  const [digits, power] = value.toExponential().split("e") as [string, string];
  const exponent = Number(power);
  if (value !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const plain = Object.is(value, -0) ? "-0" : String(value);
  return plain.includes(".") ? plain : `${plain}.0`;
}
