// The compiler's strict settings (tsconfig.json) check the types; this file adds the other rules.

import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  { ignores: ["dist", "test-build"] },
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  {
    files: ["src/**/*.ts"],
    extends: [js.configs.recommended, tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // Numbers may appear in messages.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      // An async function turns exceptions into rejections, even without an await.
      "@typescript-eslint/require-await": "off",
      // Messages show whatever a driver or a server returned.
      "@typescript-eslint/no-base-to-string": "off",
      // Errors are passed on unchanged.
      "@typescript-eslint/prefer-promise-reject-errors": "off",
      // An empty user or password counts as missing.
      "@typescript-eslint/prefer-nullish-coalescing": "off",
      // A signal may be aborted during an await, which the types do not show.
      "@typescript-eslint/no-unnecessary-condition": "off",
      // Loops without a condition end with return or throw.
      "no-constant-condition": ["error", { checkLoops: false }],
    },
  },
  {
    files: ["**/*.mjs"],
    extends: [js.configs.recommended],
    languageOptions: {
      globals: Object.fromEntries(
        ["AbortController", "Buffer", "clearTimeout", "URL", "console", "performance", "process", "setTimeout"].map((name) => [
          name,
          "readonly",
        ]),
      ),
    },
  },
);
