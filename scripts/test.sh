#!/bin/sh
# Installs what is missing, builds, checks the formatting, runs the tests.
#
#   scripts/test.sh [--require-cuda] [--asan] [--tsan]
#
# The preset cpu is built and tested; the preset cuda too where nvcc and cuDNN are, else one SKIPPED
# line says what is missing, and --require-cuda makes that a failure. Where there is an NVIDIA GPU,
# every operation of the CUDA backend is tested on it (scripts/gpu-check.sh does more); what CUDA it
# lacks comes from scripts/get-cuda.sh.
# --asan and --tsan build and test these presets as well (tsan takes clang and its OpenMP). Tests
# labelled slow are left out.
# AMP_CUDA_ARCHITECTURES (default: those of the GPUs here, else "75;90") limits what the preset cuda
# compiles for.
set -eu
cd "$(dirname "$0")/.."

require_cuda=0
asan=0
tsan=0
for argument in "$@"; do
    case "$argument" in
    --require-cuda) require_cuda=1 ;;
    --asan) asan=1 ;;
    --tsan) tsan=1 ;;
    *)
        echo "test.sh: unknown argument \"$argument\"; usage: scripts/test.sh [--require-cuda] [--asan] [--tsan]" >&2
        exit 1
        ;;
    esac
done
jobs=$(nproc)

# The formatting check needs the version that the code is formatted with: others differ in details.
format_version=14

packages="build-essential cmake pkg-config libopencv-dev libdnnl-dev python3 patch xz-utils clang-format"
[ "$tsan" = 0 ] || packages="$packages clang llvm libomp-dev"

. scripts/packages.sh
. scripts/preset.sh

check_format() {
    found=$(clang-format --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
    if [ "$found" != "$format_version" ]; then
        echo "SKIPPED formatting check: clang-format $found here, the code is formatted with $format_version"
        return
    fi
    git ls-files -z '*.c' '*.h' '*.cc' '*.cu' | xargs -0 clang-format --dry-run -Werror
    echo "Formatting is right"
}

build() {
    cmake --preset "$1"
    cmake --build --preset "$1" -j "$jobs"
}

run_tests() {
    preset=$1
    shift
    ctest --preset "$preset" -j "$jobs" --no-label-summary -LE slow "$@"
}

# What differs from the CPU build: how the plugin gets into Darknet, training without a GPU, and what
# the toolkit's libraries and compiler, or a GPU, make of our kernels and convolutions.
test_cuda() {
    labels='attach|cuda|gpu'
    if ! { find_gpus && find_cuda; }; then
        echo "SKIPPED tests on a GPU: $reason"
        labels='attach|cuda'
        architectures="75;90"
        if ! find_nvcc || ! configure_cuda; then
            echo "SKIPPED cuda: $reason"
            [ "$require_cuda" = 0 ]
            return
        fi
    fi
    tell_cuda
    cmake --build --preset cuda -j "$jobs"
    run_tests cuda -L "$labels"
    # Why, where tests end with status 77.
    grep -h '^SKIPPED' build/cuda/Testing/Temporary/LastTest.log | sort -u
}

install_missing $packages
check_format
scripts/get-darknet.sh
test_cuda
if [ "$asan" = 1 ]; then
    build asan
    run_tests asan
fi
if [ "$tsan" = 1 ]; then
    build tsan
    run_tests tsan
fi
build cpu
run_tests cpu
