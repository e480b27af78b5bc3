#!/usr/bin/env bash
# The tests of native code, compiled with checks of addresses and undefined behaviour. A finding ends the run.
#   scripts/sanitize.sh [tests...] [options of pytest]   default: tests/kernels/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

case "${1:-}" in
  "" | -*) set -- tests/kernels/cpu "$@" ;;
esac

compiler=${CXX:-c++}
libraries=()
for name in libasan.so libstdc++.so.6; do
  path=$($compiler -print-file-name="$name")
  # The compiler repeats the name of a file it does not have.
  [ -e "$path" ] || { echo "$compiler has no $name: take GCC (CXX=g++), with its sanitizers installed" >&2; exit 1; }
  libraries+=("$(realpath "$path")")
done

# Python leaves memory to the end of the process; one library for each instruction set defines the same names.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1
export TOKENMILL_NATIVE_SANITIZE=1
# Checks take several times as long. Reports are written past Python, so pytest must leave standard error alone.
LD_PRELOAD="${libraries[*]}" exec python -m pytest \
  -p no:faulthandler --capture=sys -o timeout=1200 "$@"
