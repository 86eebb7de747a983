/** What is wrong, with what was expected and what came; never a payload. */
export class EdgeError extends Error {
  override readonly name: string = "EdgeError";
}

/** A value is not of its feature's type, or names no declared feature. */
export class BadValue extends EdgeError {
  override readonly name = "BadValue";
}

/** What the operator gave out (terms, a model, keys) is none of what was agreed to. */
export class Refused extends EdgeError {
  override readonly name = "Refused";
}

/** What lies in the device's storage is not what this package wrote. */
export class BadState extends EdgeError {
  override readonly name = "BadState";
}

/** Refuse what is not as agreed. */
export function require(place: string, good: boolean, what: string): void {
  if (!good) throw new Refused(`${place}: expected ${what}, got another`);
}
