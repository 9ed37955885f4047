#!/usr/bin/env bash
# Packs dreamlab and what it needs but torch and numpy into one file, for a Linux machine (x86_64) where
# nothing can be installed: pack_offline.sh --python 3.12 --out FILE.tar.xz [--extras dmc,atari,crafter,minigrid,tests]
set -euo pipefail
fail() { echo "pack_offline.sh: $1" >&2; exit 2; }

version="" out="" extras=""
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case $1 in
    --python) version=$2 ;;
    --out) out=$2 ;;
    --extras) extras=$2 ;;
    *) fail "unknown option $1 (known: --python, --out, --extras)" ;;
  esac
  shift 2
done
[[ $version =~ ^3\.[0-9]+$ ]] || fail "--python needs the version of that machine, as 3.12"
[[ $out == *.tar.xz ]] || fail "--out needs a file that ends in .tar.xz"

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-python}
listed() { sed -n "s/^$1: //p" "$here/offline-packages.txt" | tr ' ' '\n'; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=$(listed core)
for extra in ${extras//,/ }; do
  [[ $extra =~ ^(atari|dmc|crafter|minigrid|tests)$ ]] || fail "unknown extra $extra (known: atari, dmc, crafter, minigrid, tests)"
  packages+=$'\n'$(listed "$extra")
done
source=$(grep -Fxf <(listed source) <<<"$packages")
ready=$(grep -vFxf <(listed source) <<<"$packages")

# shellcheck disable=SC2086 # the lists are words
"$python" -m pip wheel --quiet --no-deps -c "$root/constraints.txt" -w "$work/wheels" $source "$root"
# shellcheck disable=SC2086
"$python" -m pip install --quiet --no-deps --no-compile --target "$work/packed" -c "$root/constraints.txt" \
  --only-binary=:all: --implementation cp --python-version "$version" \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64 \
  $ready "$work"/wheels/*.whl
"$python" "$here/pack_offline.py" "$work/packed" "$out"
