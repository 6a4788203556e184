// The compiler's strict settings (tsconfig.json) say what types must be; this says what else must not be.

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
      // Numbers are written into messages as they are.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      // An async function turns what it throws into a rejection, also where it awaits nothing.
      "@typescript-eslint/require-await": "off",
      // What a driver or a server gives is told in messages, whatever it is.
      "@typescript-eslint/no-base-to-string": "off",
      // Errors are passed on as they came.
      "@typescript-eslint/prefer-promise-reject-errors": "off",
      // An empty user or password is none.
      "@typescript-eslint/prefer-nullish-coalescing": "off",
      // An abort may come while something is awaited, which the types do not say.
      "@typescript-eslint/no-unnecessary-condition": "off",
      // Loops without a condition end by return or throw.
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
