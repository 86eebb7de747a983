export * from "./errors.js";
export type { CallOptions, GatewayOptions } from "./gateway.js";
export * from "./generated.js";
