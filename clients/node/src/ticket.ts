/** Tickets: the data with which another process adopts a hold, in each language that has `adopt`. Pure. */

import { inspect } from "node:util";

import type { Request } from "./commands.js";
import { checkCount, checkName, checkNames, checkOwner, checkToken, MOST_PERMITS } from "./rules.js";

/** A string that is not valid text: its bytes could not be sent unchanged. */
const LONE_SURROGATE = /\p{Surrogate}/u;
const KINDS = new Set<unknown>(["exclusive", "read", "semaphore"]);

/** The content of a ticket. */
type Told = Pick<Request, "names" | "kind" | "limit" | "owner"> & { readonly token: number };

export function ticketOf({ names, kind, limit, owner }: Request, token: number): string {
  return JSON.stringify({ names, kind: kind === "write" ? "exclusive" : kind, limit: limit ?? null, owner, token });
}

/** Returns the content of the ticket. Throws a `TypeError` if it is not a ticket. */
export function readTicket(ticket: unknown): Told {
  try {
    const { names, kind, limit, owner, token } = JSON.parse(ticket as string) as Record<string, unknown>;
    checkNames(names);
    checkName((names as string[])[0]);
    checkOwner(owner);
    checkToken(token);
    if (!KINDS.has(kind)) throw new TypeError("no kind");
    if (kind === "semaphore") checkCount("limit", limit, MOST_PERMITS);
    else if (limit !== null) throw new TypeError("a limit of no semaphore");
    const texts = [...(names as string[]), owner as string];
    if (texts.some((text) => LONE_SURROGATE.test(text))) throw new TypeError("no text");
    return { ...(JSON.parse(ticket as string) as Told), limit: (limit ?? undefined) as number | undefined };
  } catch (error) {
    throw new TypeError(`ticket must be what detach() has given: ${inspect(ticket)}`, { cause: error });
  }
}
