#!/usr/bin/env bash
# Installs the system libraries that some suites draw with, where apt exists and something is missing.
set -euo pipefail
cd "$(dirname "$0")"
command -v dpkg >/dev/null || { echo "no dpkg here: see scripts/apt-packages.txt for what drawing needs"; exit 0; }
missing=()
while read -r name; do
  [ -z "$name" ] || dpkg -s "$name" >/dev/null 2>&1 || missing+=("$name")
done < apt-packages.txt
[ ${#missing[@]} -eq 0 ] && exit 0
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "please install: ${missing[*]}"; exit 0; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
