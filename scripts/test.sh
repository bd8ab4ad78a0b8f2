#!/bin/sh
# Installs what is missing, builds, checks the formatting, runs the tests.
#
#   scripts/test.sh [--require-cuda] [--asan] [--tsan]
#
# Builds and tests the preset cpu; then the preset cuda where nvcc and cuDNN are, else one SKIPPED line says
# what is missing, and --require-cuda makes that a failure. Where there is an NVIDIA GPU, every operation of
# the CUDA backend is tested on it (scripts/gpu-check.sh does more); scripts/get-cuda.sh fetches CUDA if it is
# missing. --asan and --tsan build and test these presets as well (tsan needs clang and its OpenMP). Tests
# labelled slow are left out.
# One part that fails does not keep the others from running. At the end a SKIPPED line stands for each thing that
# was left out, with the tests that say so; the last line names all that failed, status 1.
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
tests=$((jobs + 1)) # at once: some wait more than they compute

# The formatting check needs the version that the code is formatted with: others differ in details.
format_version=14

packages="build-essential cmake pkg-config libopencv-dev libdnnl-dev libjpeg-dev libxxhash-dev python3 python3-pil python3-scipy patch xz-utils openmpi-bin libopenmpi-dev clang-format ccache"
[ "$tsan" = 0 ] || packages="$packages clang llvm libomp-dev"

. scripts/packages.sh
. scripts/preset.sh

# attempt NAME COMMAND...   The name is kept in $failed where the command fails. The shell's -e does not hold
# inside, so every function that is attempted joins its steps by && or returns.
failed=
attempt() {
    part=$1
    shift
    "$@" || {
        echo "test.sh: FAILED: $part" >&2
        failed="$failed${failed:+, }$part"
    }
}

# Lines for the end.
skipped=
note_skipped() {
    skipped="$skipped$1
"
}

check_format() {
    found=$(clang-format --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
    if [ "$found" != "$format_version" ]; then
        note_skipped "SKIPPED formatting check: clang-format $found here, the code is formatted with $format_version"
        return
    fi
    git ls-files -z '*.c' '*.h' '*.cc' '*.cu' | xargs -0 clang-format --dry-run -Werror &&
        echo "Formatting is right"
}

test_preset() {
    cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" && run_tests "$1"
}

run_tests() {
    preset=$1
    shift
    ctest --preset "$preset" -j "$tests" --no-label-summary -LE slow "$@" && passed=0 || passed=1
    [ "$preset" = cpu ] && folder=build || folder=build/$preset
    note_skipped "$(list_skipped <"$folder/Testing/Temporary/LastTest.log")"
    return $passed
}

# From CTest's log: what tests left out, each reason once, with the tests that name it.
list_skipped() {
    awk -v preset="$preset" '
        /^[0-9]+\/[0-9]+ Testing: / { test = $3 }
        /^SKIPPED/ && !seen[$0, test]++ { tests[$0] = tests[$0] (tests[$0] == "" ? "" : ", ") test }
        END { for (line in tests) print line " (" preset ": " tests[line] ")" }' | sort
}

# What differs from the CPU build: how the plugin gets into Darknet, training without a GPU, and what
# the toolkit's libraries and compiler, or a GPU, make of our kernels and convolutions.
test_cuda() {
    labels='attach|cuda|gpu'
    if ! { find_gpus && find_cuda; }; then
        note_skipped "SKIPPED tests on a GPU: $reason"
        labels='attach|cuda'
        architectures="75;90"
        if ! find_nvcc || ! configure_cuda; then
            if lacks_cuda && [ "$require_cuda" = 0 ]; then
                note_skipped "SKIPPED cuda: $reason"
                return
            fi
            echo "test.sh: $reason" >&2
            return 1
        fi
    fi
    print_cuda
    cmake --build --preset cuda -j "$jobs" || return 1
    find_cuobjdump
    run_tests cuda -L "$labels"
}

# With it a test looks at what nvcc made of the kernels. It is not in every toolkit; in NVIDIA's Python packages it is
# small, and reads what older versions compiled. Without it that test is skipped.
find_cuobjdump() {
    PATH=$PATH:$(dirname "$nvcc"):$PWD/build/cuobjdump/nvidia/cu13/bin
    ! { command -v cuobjdump && command -v nvdisasm; } >/dev/null || return 0
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --only-binary :all: \
        --target build/cuobjdump "nvidia-cuda-cuobjdump==13.*" "nvidia-cuda-nvdisasm==13.*" ||
        echo "test.sh: pip could not load cuobjdump"
}

# For the tests of `amp export`, which are skipped without.
find_onnx() {
    ! PYTHONPATH=build/onnx python3 -c "import onnx, onnxruntime" 2>/dev/null || return 0
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --only-binary :all: \
        --target build/onnx onnx onnxruntime pillow || echo "test.sh: pip could not load onnx and onnxruntime"
}

install_missing $packages
# What the presets compile alike is compiled once.
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1
fi
scripts/get-darknet.sh
find_onnx
attempt formatting check_format
attempt "preset cpu" test_preset cpu
attempt "preset cuda" test_cuda
[ "$asan" = 0 ] || attempt "preset asan" test_preset asan
[ "$tsan" = 0 ] || attempt "preset tsan" test_preset tsan
printf '%s' "$skipped" | sed '/^$/d'
if [ -n "$failed" ]; then
    echo "test.sh: FAILED: $failed" >&2
    exit 1
fi
echo "All passed"
