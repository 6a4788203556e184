// The package, installed in a fresh folder, takes a lock by import and by require.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { atEnd, startServer } from "./servers.mjs";

const run = promisify(execFile);
const root = dirname(fileURLToPath(new URL(".", import.meta.url)));

const body = (address) => `
  const redis = new Redis("redis://${address}");
  const locks = new Locks(redis);
  locks.run("k", (hold) => console.log(hold.token > 0))
    .then(() => locks.close()).then(() => redis.quit());
`;

test("the package takes a lock by import and by require", async (t) => {
  const server = await startServer(t);
  const folder = mkdtempSync(join(tmpdir(), "redislock-package-"));
  atEnd(t, () => rmSync(folder, { recursive: true, force: true }));
  const packed = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", folder], { cwd: root });
  const [{ filename, files }] = Object.values(JSON.parse(packed.stdout));
  const paths = files.map(({ path }) => path);
  assert.ok(paths.includes("README.md") && paths.includes("dist/index.d.mts"));
  assert.deepEqual(
    paths.filter((path) => !/^(dist\/|README\.md$|package\.json$)/.test(path)),
    [],
  );
  writeFileSync(join(folder, "package.json"), '{ "private": true }');
  const words = ["install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", join(folder, filename)];
  await run("npm", words, { cwd: folder });
  const modules = realpathSync(join(root, "node_modules"));
  mkdirSync(join(folder, "node_modules"), { recursive: true });
  symlinkSync(join(modules, "ioredis"), join(folder, "node_modules", "ioredis"));
  const imports = 'import { Redis } from "ioredis"; import { Locks } from "redislock";';
  writeFileSync(join(folder, "by-import.mjs"), `${imports}${body(server.address)}`);
  const requires = 'const { Redis } = require("ioredis"); const { Locks } = require("redislock");';
  writeFileSync(join(folder, "by-require.cjs"), `${requires}${body(server.address)}`);
  for (const program of ["by-import.mjs", "by-require.cjs"]) {
    const { stdout } = await run(process.execPath, [program], { cwd: folder, timeout: 30_000 });
    assert.equal(stdout, "true\n", program);
  }
  const same = `import("redislock").then((m) => console.log(m.LockLostError === require("redislock").LockLostError))`;
  assert.equal((await run(process.execPath, ["-e", same], { cwd: folder })).stdout, "true\n");
});
