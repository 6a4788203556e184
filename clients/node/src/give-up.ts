/** How an attempt gives up what a server may grant, or has granted, without anybody who waits for it. */

import { now, pauseBefore } from "./clock.js";
import { type Request, releaseCommand } from "./commands.js";
import { mayPass, meaningOf } from "./errors.js";
import type { Taken } from "./loose.js";
import type { Command, Route } from "./route.js";
import { pause } from "./scheduler.js";

/**
 * Sends a release after what may be on its way over the client, and around a client that is unfit. Not both for an
 * owner that the program has named: it may ask for the same again meanwhile.
 */
function release(route: Route, name: string, command: Command, isNamed: boolean, isBound: boolean): Promise<unknown> {
  if (route.isFit || isBound) return route.over(name, command);
  const around = route.around(name, command);
  return isNamed || route.isClosed ? around : Promise.any([around, route.over(name, command)]);
}

/**
 * Releases each name until that is answered or the lease would be over, but no name that is taken meanwhile. Without a
 * token it ends the wait and any hold of the owner. `isBound`: it must not overtake what is on its way over the client.
 */
export function givingUp(
  route: Route,
  { keys, owner, lease, isNamed }: Request,
  { token, taken, isBound }: { token: number | undefined; taken: Taken; isBound: boolean },
): Promise<unknown>[] {
  const until = now() + lease;
  return keys.map(async (name) => {
    const command = () => (taken.has(name) ? undefined : releaseCommand(name, owner, token));
    for (let attempt = 0; !taken.has(name); attempt++) {
      try {
        return await release(route, name, command, isNamed, isBound);
      } catch (error) {
        if (!mayPass(meaningOf(error)) || now() >= until || route.isClosed) return undefined;
        await pause(pauseBefore(attempt));
      }
    }
    return undefined;
  });
}
