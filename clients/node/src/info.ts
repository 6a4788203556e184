/** Parses the reply to LOCK.INFO. Pure. */

/** The holders of a lock, and its waiters. */
export interface LockInfo {
  readonly kind: "exclusive" | "shared" | "limit";
  /** The number of permits, for a semaphore only. */
  readonly limit?: number;
  /** The first ten holders, the oldest token first; `holds` is the total. */
  readonly holders: readonly LockHolder[];
  readonly holds: number;
  /** The first ten waiters, the next one first; `waiters` is the total. */
  readonly queue: readonly LockWaiter[];
  readonly waiters: number;
}

export interface LockHolder {
  readonly owner: string;
  readonly token: number;
  /** The rest of the lease, and the time since the grant. */
  readonly leftMs: number;
  readonly heldMs: number;
}

export interface LockWaiter {
  readonly owner: string;
  readonly waitedMs: number;
}

export function infoOf(reply: unknown): LockInfo {
  const count = (of: unknown, field: string) => Number(fieldOf(of, field));
  const rows = (field: string) => (fieldOf(reply, field) ?? []) as readonly unknown[];
  const limit = fieldOf(reply, "limit");
  return {
    kind: String(fieldOf(reply, "kind")) as LockInfo["kind"],
    ...(limit === undefined || limit === null ? {} : { limit: Number(limit) }),
    holders: rows("holders").map((row) => ({
      owner: String(fieldOf(row, "owner")),
      token: count(row, "token"),
      leftMs: count(row, "lease-left-ms"),
      heldMs: count(row, "held-ms"),
    })),
    holds: count(reply, "holds"),
    queue: rows("queue").map((row) => ({ owner: String(fieldOf(row, "owner")), waitedMs: count(row, "waited-ms") })),
    waiters: count(reply, "waiters"),
  };
}

/** Returns the module's version in the reply to HELLO, as 300 for 0.3.0; undefined if the server has no such module. */
export function versionOf(hello: unknown): number | undefined {
  const modules = (fieldOf(hello, "modules") ?? []) as readonly unknown[];
  const its = modules.find((each) => String(fieldOf(each, "name")) === "redislock");
  return its === undefined ? undefined : Number(fieldOf(its, "ver"));
}

/** The role of the server in its reply to HELLO. */
export const roleOf = (hello: unknown): string => String(fieldOf(hello, "role"));

/** Formats a version: 300 as 0.3.0. */
export const shown = (version: number): string =>
  [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100].join(".");

/**
 * Returns a field of a reply, which is a map in RESP3 and an array in RESP2. Drivers may return bytes instead of text.
 */
function fieldOf(reply: unknown, field: string): unknown {
  if (Array.isArray(reply)) {
    const index = reply.findIndex((each, place) => place % 2 === 0 && String(each) === field);
    return index < 0 ? undefined : reply[index + 1];
  }
  if (reply instanceof Map) return reply.get(field);
  return (reply as Record<string, unknown>)[field];
}
