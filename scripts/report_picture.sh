#!/usr/bin/env bash
# Makes docs/images/report.png: trains three seeds of two algorithms, writes their report, photographs it with Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
dreamlab train ppo_cartpole seed=1,2,3 training.total_frames=30_000 run.dir="$out/ppo"
dreamlab train dqn_cartpole seed=1,2,3 training.total_frames=12_000 run.dir="$out/dqn"
dreamlab report "$out/ppo" "$out/dqn" --out "$out/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$out/browser" --window-size=1000,1010 \
  --screenshot=docs/images/report.png "file://$out/page.html"
rm -r "$out"
