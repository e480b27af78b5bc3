#!/usr/bin/env bash
# Makes .venv and installs what the lock files pin. Does nothing when that is done already.
#   --test   also what the test suite needs: curl, Node and the client SDKs whose own tests are run
set -euo pipefail
cd "$(dirname "$0")/.."

locks=(requirements.lock)
stamp=.venv/installed
sdks=tests/conformance/node
test=${1:-}
if [ "$test" = "--test" ]; then
  locks+=(requirements-test.lock)
  stamp=.venv/installed-test
fi
keyed=("${locks[@]}")
[ "$test" != "--test" ] || keyed+=("$sdks/package-lock.json")
log=.venv/install.log
here=$(pwd -P)
quiet_seconds=5

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The first Python on the path that is new enough; PYTHON=... chooses another.
find_python() {
  local name
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

apt_install() {
  if ! command -v apt-get >/dev/null; then
    die "install $* with your package manager, then run this again"
  elif [ "$(id -u)" != 0 ]; then
    die "type: sudo apt-get update && sudo apt-get install -y $*    and run this again"
  fi
  say "Installing $* with apt-get"
  export DEBIAN_FRONTEND=noninteractive
  local told
  told=$(apt-get update -qq 2>&1 && apt-get install -y -qq --no-install-recommends "$@" 2>&1) ||
    die "apt-get could not install $*: $told"
}

make_venv() {
  local python
  if ! python=$(find_python); then
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not Python 3.11 or newer"
    apt_install python3 python3-venv
    python=$(find_python) || die "Python 3.11 or newer is needed; this system offers $(python3 --version 2>&1)"
  fi
  if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    apt_install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  fi
  say "Creating .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv .venv
}

# Scripts in .venv/bin name their Python by its full path, so a .venv works only where it was made.
venv_works() {
  [[ "$(.venv/bin/pip --version 2>/dev/null)" == *" from $here/.venv/"* ]]
}

# pip's own output goes to the log; what it is at goes to the screen, and how long, when it is silent.
pip_install() {
  local total count=0 line part= at="starting pip" since=$SECONDS status=0
  local download='Downloading (.*/)?([^-/ ]+-[^-/ ]+)[^/ ]*\.whl \((.* [MG]B)\)'
  total=$(cat "${locks[@]}" | grep -c '==')
  .venv/bin/python -m pip install --no-input --disable-pip-version-check --progress-bar off "$@" 2>>"$log" |
    tee -a "$log" |
    while true; do
      if IFS= read -r -t "$quiet_seconds" line; then
        line=$part$line part=
      elif [ $? -gt 128 ]; then
        part+=$line
        now "$at, $((SECONDS - since)) s"
        continue
      else
        break
      fi
      if [[ $line == Collecting\ * ]]; then
        count=$((count + 1))
        at="[$count/$total] ${line#Collecting }"
        at_work "$at"
      elif [[ $line =~ $download ]]; then
        at="${BASH_REMATCH[2]} (${BASH_REMATCH[3]})"
        now "$at"
      elif [[ $line == Installing\ collected* ]]; then
        at="unpacking"
        now "$at"
      else
        continue
      fi
      since=$SECONDS
    done || status=$?
  [ ! -t 2 ] || printf '\r\033[K' >&2
  return "$status"
}

# One line that is written over on a terminal. Elsewhere a line of its own, and none for small steps.
now() {
  if [ -t 2 ]; then printf '\r\033[K    %s' "$1" >&2; else printf '    %s\n' "$1" >&2; fi
}
at_work() {
  [ ! -t 2 ] || now "$1"
}

# The tests of openai-python come with its source package, and the npm SDKs from their registry.
fetch_sdks() {
  local release
  release=$(sed -n 's/^openai==//p' requirements-test.lock)
  say "Fetching the client SDKs"
  rm -rf .venv/conformance
  {
    .venv/bin/python -m pip download --no-input --disable-pip-version-check --no-deps --no-binary openai \
      --dest .venv/conformance "openai==$release" &&
      tar -xzf ".venv/conformance/openai-$release.tar.gz" -C .venv/conformance "openai-$release/tests" &&
      npm ci --prefix "$sdks" --no-update-notifier
  } >>"$log" 2>&1
}

# Changes whenever what should be installed does.
key() {
  { echo "$here"; cat "$@" pyproject.toml; } | cksum
}

if [ "$test" = "--test" ]; then
  missing=()
  command -v curl >/dev/null || missing+=(curl)
  { command -v node && command -v npm; } >/dev/null || missing+=(nodejs npm)
  [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}"
fi
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(key "${keyed[@]}")" ]; then
  exit 0
fi
venv_works || make_venv
say "Installing packages from ${locks[*]}"
: >"$log"
arguments=()
for lock in "${locks[@]}"; do arguments+=(-r "$lock"); done
if ! pip_install "${arguments[@]}" || ! pip_install --no-deps --no-build-isolation -e . ||
  { [ "$test" = "--test" ] && ! fetch_sdks; }; then
  tail -n 15 "$log" >&2
  die "the installation failed; the whole log is in $log"
fi
key requirements.lock >.venv/installed
[ "$test" != "--test" ] || key "${keyed[@]}" >"$stamp"
