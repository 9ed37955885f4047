#!/bin/bash
# Trace what a GPU compiles with another version of torch than the one installed, without a GPU:
#
#     scripts/trace_other_torch.sh 2.11.0 FOLDER [precision] [experiment ...]
#
# PyPI has builds for CUDA only, and their libraries take gigabytes. Nothing of CUDA is called while
# a CPU traces, so libraries of the same names that answer every call with "no device" stand in.
# Takes 0.5 GB to fetch and 1.2 GB in FOLDER, once; all other packages are those of this Python.
set -euo pipefail

version=${1:?the version of torch}
folder=${2:?a folder for it}
precision=${3:-bf16}
shift $(($# < 3 ? $# : 3))
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(dreamer_debug)

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
lib=$folder/site/torch/lib

stand_in() { # NAME: a library whose functions all return cudaErrorNoDevice
    local name=$1 symbol version
    : >"$folder/stub.c"
    : >"$folder/stub.map"
    for version in $(awk -v name="$name" '$1 == name {print $2}' "$folder/versions"); do
        echo "$version {" >>"$folder/stub.map"
        for symbol in $(sed -n "s/@$version\$//p" "$folder/wanted"); do
            echo "int $symbol(void) { return 100; }" >>"$folder/stub.c"
            echo "    $symbol;" >>"$folder/stub.map"
        done
        echo "};" >>"$folder/stub.map"
    done
    [ -s "$folder/stub.map" ] || echo "$name {};" >"$folder/stub.map"
    gcc -shared -fPIC -fno-builtin -w -Wl,-soname,"$name" -Wl,--version-script,"$folder/stub.map" \
        -o "$folder/stubs/$name" "$folder/stub.c"
}

if [ ! -e "$folder/stubs/done" ]; then
    mkdir -p "$folder/stubs"
    [ -d "$lib" ] || "$python" -m pip install --no-deps --target "$folder/site" "torch==$version"
    libraries=("$lib"/*.so "$folder"/site/torch/_C*.so)
    nm -D --undefined-only "${libraries[@]}" | awk 'NF == 2 {print $2}' | sort -u >"$folder/wanted"
    readelf -VW "${libraries[@]}" |
        awk '/File: /{file = $5} /Name: .*Flags/{print file, $3}' | sort -u >"$folder/versions"
    for name in $(readelf -dW "${libraries[@]}" |
        sed -n 's/.*NEEDED.*\[\(lib\(cu\|nv\|nccl\).*\)\]/\1/p' | sort -u); do
        stand_in "$name"
    done
    # those that are wanted from no library in particular
    grep -E '^(__cuda|cu|nv|nccl)[^@]*$' "$folder/wanted" | sed 's/.*/int &(void) { return 100; }/' \
        >"$folder/stub.c"
    gcc -shared -fPIC -fno-builtin -w -o "$folder/stubs/others.so" "$folder/stub.c"
    touch "$folder/stubs/done"
fi

export LD_LIBRARY_PATH=$folder/stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_PRELOAD=$folder/stubs/others.so
export PYTHONPATH=$folder/site:$root/src:$root CUDA_VISIBLE_DEVICES=
"$python" -c "import torch; print('torch', torch.__version__)"
cd "$root"
exec "$python" -m "tests.accel.${SCRIPT:-traced}" "$(mktemp -d)" "$precision" "${names[@]}"
