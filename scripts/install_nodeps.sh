#!/usr/bin/env bash
# Installs packages whose declared requirements clash with ours although they run with our versions.
# What they really need comes with the extras of the same name: pip install 'dreamlab[pusht,metaworld,procgen]'
set -euo pipefail
python=${1:-python}
# PushT asks for pygame, which overwrites pygame-ce; Meta-World for mujoco==3.3.0.
"$python" -m pip install --no-deps "gym-pusht>=0.1.5,<0.2" "metaworld>=3.0,<4"
# Procgen asks for numpy<2; wheels exist for Python 3.11 and older only.
if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
  "$python" -m pip install --no-deps "procgen2==0.10.7" "gym3==0.3.3"
else
  echo "procgen: no wheel for this Python, left out"
fi
