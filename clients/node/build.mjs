// Builds dist: CommonJS by the compiler, and an ES module that re-exports it, so that a program which uses both has
// one scheduler and one set of error classes.

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const at = (path) => new URL(path, import.meta.url);

rmSync(at("dist"), { recursive: true, force: true });
execFileSync(process.execPath, [require.resolve("typescript/bin/tsc"), "-p", "."], {
  cwd: at("."),
  stdio: "inherit",
});
for (const entry of ["index", "testing", "opentelemetry", "redlock"]) {
  const names = Object.keys(require(`./dist/${entry}.js`)).sort();
  writeFileSync(at(`dist/${entry}.mjs`), `export { ${names.join(", ")} } from "./${entry}.js";\n`);
  writeFileSync(at(`dist/${entry}.d.mts`), `export * from "./${entry}.js";\n`);
}
if (!readFileSync(at("dist/index.mjs"), "utf8").includes("Locks")) throw new Error("dist exports no Locks");
