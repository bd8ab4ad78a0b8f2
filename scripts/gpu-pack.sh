#!/bin/sh
# Packs a build of the preset cuda (programs, libraries, tests, cfgs; stripped) for scripts/gpu-check.sh and
# scripts/bench-gpu on a machine that has a GPU and does not build.
#
#   scripts/gpu-pack.sh OUT [BUILD]      BUILD: default build/cuda
#
# OUT is a folder, or a tarball if its name ends in .tar.xz; gpu-check.sh --binaries takes both. Build what is packed,
# for the other machine's card alone (90: its compute capability, 9.0), with
#   cmake --preset cuda -DAMP_CUDA_ARCHITECTURES=90 -DAMP_OPENCV=OFF
#   cmake --build --preset cuda --target gpu_check_programs -j
# The folder is large, because each program has all kernels; xz finds that. A tarball above 60 MiB is refused, before
# somebody carries it: it has the kernels of many cards, of which the other machine needs one's.
# A build with OpenCV is refused: it would need some hundred libraries of this machine. CUDA, cuDNN, MPI and the
# C library are not packed, as the other machine or its PyTorch has its own; all other libraries are. The file
# `commit` says what was built.
set -eu

fail() {
    echo "gpu-pack.sh: $*" >&2
    exit 1
}

[ $# = 1 ] || [ $# = 2 ] || fail "usage: scripts/gpu-pack.sh OUT [BUILD]"
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${2:-$root/build/cuda}" && pwd) || fail "no build in ${2:-build/cuda}"
[ -x "$build/bin/bench_step" ] || fail "$build/bin/bench_step is not built"
! grep -q '^AMP_OPENCV:BOOL=\(ON\|1\|TRUE\|YES\)$' "$build/CMakeCache.txt" ||
    fail "$build is built with OpenCV, whose libraries the other machine lacks; build with
    cmake --preset cuda -DAMP_OPENCV=OFF && cmake --build --preset cuda"
upstream=$(sed -n 's/^DARKNET_SOURCE_DIR:[A-Z]*=//p' "$build/CMakeCache.txt")

case "$1" in
*.tar.xz)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    ;;
*.tar.* | *.tgz | *.zip) fail "$1: OUT must be a folder or NAME.tar.xz" ;;
*)
    folder=$1
    rm -rf "$folder"
    ;;
esac
mkdir -p "$folder/bin" "$folder/lib" "$folder/tests" "$folder/cfg"

cp "$build/bin/bench_step" "$build/bin/darknet" "$folder/bin/"
cp "$build/lib/libdarknet.so" "$build/lib/libdarknet_amp.so.1" "$folder/lib/"
for test in "$build"/tests/test_*_gpu_* "$build"/tests/gpu_*; do
    if [ -f "$test" ]; then cp "$test" "$folder/tests/"; fi
done
for net in yolov3 yolov3-tiny yolov2 darknet19 darknet53; do
    cp "$upstream/cfg/$net.cfg" "$folder/cfg/"
done
cp "$root/cfg/small160.cfg" "$folder/cfg/"
git -C "$root" describe --always --dirty --abbrev=12 >"$folder/commit" || echo unknown >"$folder/commit"

# Libraries: "NAME => PATH" of ldd, less those that every machine has or must have its own of.
for program in "$folder"/bin/* "$folder"/lib/* "$folder"/tests/*; do
    ldd "$program" || fail "$program: ldd fails"
done | sed -n 's/^[[:space:]]*\([^ ]*\) => \(\/[^ ]*\).*/\1 \2/p' | sort -u | while read -r name path; do
    case "$name" in
    libdarknet* | libcuda* | libcudnn* | libcublas* | libcurand* | libnv* | libc.so* | libm.so* | \
        libmvec.so* | libdl.so* | libpthread.so* | librt.so* | ld-linux* | libgcc_s.so* | libstdc++.so*) ;;
    *) cp -L "$path" "$folder/lib/$name" ;;
    esac
done
strip "$folder"/bin/* "$folder"/lib/* "$folder"/tests/*

# It runs with the other machine's MPI, whose mpirun starts the processes, and lies apart: where there is none, all
# else runs without it.
mpi=$build/lib/libdarknet_amp_mpi.so
if [ -f "$mpi" ]; then
    mkdir "$folder/lib/darknet-amp"
    strip -o "$folder/lib/darknet-amp/${mpi##*/}" "$mpi"
fi

case "$1" in
*.tar.xz)
    XZ_OPT=--lzma2=preset=1,dict=64MiB tar -C "$folder" -cJf "$1" .
    mib=$(($(wc -c <"$1") / 1048576))
    if [ $mib -gt 60 ]; then
        rm "$1"
        fail "$1 would have $mib MiB, more than 60: build for one card (-DAMP_CUDA_ARCHITECTURES=90), or name a folder"
    fi
    ;;
esac
du -shL "$1"
