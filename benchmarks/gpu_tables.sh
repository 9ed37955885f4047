#!/usr/bin/env bash
# Measure anew what docs/gpu.md and docs/algorithms/tdmpc2.md tell of a GPU: gpu_tables.sh [LOGS]
# Takes a quarter of an hour with nothing else on the GPU. A part that fails does not stop the others.
set -uo pipefail
cd "$(dirname "$0")" || exit 2
logs=$(mkdir -p "${1:-gpu_logs}" && cd "${1:-gpu_logs}" && pwd) || exit 2
export MUJOCO_GL=${MUJOCO_GL:-disable} PYTHONUNBUFFERED=1
failed=0

part() { # NAME COMMAND...: its output goes to a file, of which the end is shown
  local name=$1 began=$SECONDS
  shift
  echo "== $name"
  "$@" >"$logs/$name.log" 2>&1 || { failed=$((failed + 1)); echo "$name failed: $logs/$name.log"; }
  tail -n "${TAIL:-14}" "$logs/$name.log"
  echo "($((SECONDS - began)) s)"
}

part check python plan_kernels.py --check
part tdmpc2 python tdmpc2_update.py --sizes 5m --precisions bf16 --record
part first_update python first_update.py --record
part sizes python dreamer_update.py --together --record
part forms python dreamer_update.py --sizes 12m --forms dynamics adam --together --record
part many python many_runs.py --warm --record
part soak python gpu_soak.py --record
exit $failed
