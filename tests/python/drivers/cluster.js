// Takes and gives up locks on all nodes of a cluster with ioredis, as one user; prints "ok", or what was refused.
// With an OWNER: prints what LOCK.HELDBY answers, and what it answers when each primary is asked, as JSON.
//
//     NODE_PATH=... node cluster.js PORT USER PASSWORD [OWNER]
const { Cluster } = require("ioredis");

const [port, username, password, owner] = process.argv.slice(2);
const cluster = new Cluster([{ host: "127.0.0.1", port: Number(port) }], {
  redisOptions: { username, password },
  clusterRetryStrategy: () => null,
});
cluster.on("error", () => {}); // the command below fails with the same

async function useLocks() {
  for (let number = 0; number < 8; number += 1) {
    const lock = `lock:${number}`;
    const token = await cluster.call("LOCK.ACQUIRE", lock, "ann", "PX", 60000);
    if ((await cluster.call("LOCK.FENCE", lock)) !== token) throw new Error("another token");
    if ((await cluster.call("LOCK.RELEASE", lock, "ann")) !== 1) throw new Error("not released");
  }
}

async function held() {
  const one = await cluster.call("LOCK.HELDBY", owner);
  const each = await Promise.all(cluster.nodes("master").map((node) => node.call("LOCK.HELDBY", owner)));
  return JSON.stringify([one, each]);
}

(owner ? held() : useLocks().then(() => "ok"))
  .then(console.log, (error) => console.log(`refused: ${error.message}`))
  .finally(() => cluster.disconnect());
