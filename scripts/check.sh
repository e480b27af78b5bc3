#!/usr/bin/env bash
# Everything that must hold before a change is taken. Stops at the first failure.
#   --lint   without the test suite
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n==> %s\n' "$*"
  "$@" || { printf '\nFAILED: %s\n' "$*" >&2; exit 1; }
}

bash scripts/install.sh --test
export PATH="$PWD/.venv/bin:$PATH"
step ruff check .
step ruff format --check .
step mypy
step lint-imports --no-cache
if [ "${1:-}" != "--lint" ]; then
  step tokenmill pull smollm2-135m-instruct
  step python -m pytest
fi
