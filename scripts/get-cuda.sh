#!/bin/sh
# Fetches CUDA 13.0 (nvcc, libraries, headers, compute-sanitizer) and cuDNN 9.19 from NVIDIA's Python packages
# into build/toolkit, where CMake finds them. For machines that have NVIDIA's driver (580 or later) but no CUDA.
# Loads 1.1 GB, takes 1.7 GB, and 2.8 GB meanwhile. Needs no root rights and changes nothing outside build/;
# delete the folder to be rid of it. NVIDIA's licences apply.
#
#   scripts/get-cuda.sh
#
# Needs pip and uses its settings of index and proxy; exit status 3 without pip. Does nothing if all is there.
# Several calls at once wait for each other.
set -eu

packages="cuda-toolkit[nvcc,cudart,cccl,cublas,curand,nvrtc,nvtx,sanitizer]==13.0.* nvidia-cudnn-cu13==9.19.*"
root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/build/toolkit
work=$root/build/toolkit.new

fail() {
    echo "get-cuda: $*" >&2
    exit 1
}

find_pip() {
    for python in python3 /usr/bin/python3; do
        ! "$python" -m pip --version >/dev/null 2>&1 || return 0
    done
    echo "get-cuda: pip is missing; apt-get install python3-pip" >&2
    exit 3
}

[ $# = 0 ] || fail "unknown argument \"$1\"; usage: scripts/get-cuda.sh"
mkdir -p "$root/build"
exec 9>"$root/build/toolkit.lock"
flock 9
if [ "$(cat "$target/packages" 2>/dev/null)" = "$packages" ]; then
    echo "CUDA and cuDNN are in $target"
    exit 0
fi
find_pip

# Half of it would be taken for all. Who is interrupted ends so, for who called it.
clean() { rm -rf "$work"; }
stop() {
    trap - EXIT "$1"
    clean
    kill -s "$1" $$
}
trap clean EXIT
for signal in HUP INT TERM; do
    # shellcheck disable=SC2064 # this signal
    trap "stop $signal" $signal
done
clean
mkdir -p "$work/tmp" # pip unpacks there: /tmp may be small

# shellcheck disable=SC2086 # several packages
TMPDIR=$work/tmp PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 "$python" -m pip install --disable-pip-version-check \
    --no-cache-dir --root-user-action=ignore --only-binary :all: --target "$work/all" $packages 9>&- ||
    fail "pip could not load $packages"

# The packages have libraries by the names that programs look for, not those that linkers do.
for folder in "$work"/all/nvidia/*/lib; do
    for library in "$folder"/lib*.so.*; do
        name=${library##*/}
        link=$folder/${name%%.so.*}.so
        [ -e "$link" ] || ln -s "$name" "$link"
    done
done
[ -x "$work/all/nvidia/cu13/bin/nvcc" ] && [ -e "$work/all/nvidia/cudnn/lib/libcudnn.so" ] ||
    fail "the packages do not hold nvcc or cuDNN where they used to"
ln -s lib "$work/all/nvidia/cu13/lib64" # where nvcc looks
echo "$packages" >"$work/all/packages"
rm -rf "$target"
mv "$work/all" "$target"
echo "CUDA and cuDNN are now in $target"
