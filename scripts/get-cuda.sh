#!/bin/sh
# Gets what the preset cuda needs of NVIDIA's, for machines that have a driver (580 or later) and no CUDA:
# CUDA 13.0 (nvcc, libraries, headers, compute-sanitizer) and cuDNN 9.19 from NVIDIA's Python packages, into
# build/toolkit, where CMake finds them: 1.7 GB. No root rights are needed, and nothing outside build/ changes;
# delete the folder to be rid of it. NVIDIA's licences hold for what is loaded.
#
#   scripts/get-cuda.sh
#
# Needs pip (python3-pip), whose settings of index and proxy hold. Does nothing when all is there.
set -eu

packages="cuda-toolkit[nvcc,cudart,cccl,cublas,curand,nvrtc,sanitizer]==13.0.* nvidia-cudnn-cu13==9.19.*"
root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/build/toolkit

fail() {
    echo "get-cuda: $*" >&2
    exit 1
}

[ $# = 0 ] || fail "unknown argument \"$1\"; usage: scripts/get-cuda.sh"
if [ "$(cat "$target/packages" 2>/dev/null)" = "$packages" ]; then
    echo "CUDA and cuDNN are in $target"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing; apt-get install python3-pip"

# Half of it would be taken for all.
mkdir -p "$root/build"
work=$(mktemp -d "$root/build/toolkit.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# shellcheck disable=SC2086 # several packages
PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 python3 -m pip install --disable-pip-version-check --no-cache-dir \
    --root-user-action=ignore     --only-binary :all: --target "$work" $packages || fail "pip could not load $packages"

# The packages have libraries by the names that programs look for, not those that linkers do.
for library in "$work"/nvidia/*/lib/lib*.so.*; do
    link=${library%%.so.*}.so
    [ -e "$link" ] || ln -s "$(basename "$library")" "$link"
done
ln -s lib "$work/nvidia/cu13/lib64" # where nvcc looks
[ -x "$work/nvidia/cu13/bin/nvcc" ] && [ -e "$work/nvidia/cudnn/lib/libcudnn.so" ] ||
    fail "the packages do not hold nvcc or cuDNN where they used to"
chmod 755 "$work" # mktemp's are for one user
echo "$packages" >"$work/packages"
rm -rf "$target"
mv "$work" "$target"
echo "CUDA and cuDNN are now in $target"
