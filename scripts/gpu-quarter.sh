#!/bin/sh
# A quarter of an hour on one NVIDIA GPU, in two calls; needs the pack of scripts/gpu-pack.sh, PyTorch and no network.
#
#   OUT=FOLDER sh scripts/gpu-quarter.sh first|second PACK
#
#   first    at most 345 s: libraries, a small net, conformance, loss curves, speed and gradients of yolov3-tiny
#            beside PyTorch's, speed of yolov3
#   second   at most 290 s: invariants, memcheck and racecheck of our kernels, speed and gradients of yolov3 beside
#            PyTorch's fastest, end to end with the loader
#
# Each verdict is printed as it comes, and written to OUT/verdicts.txt. OUT has at most eight files, renewed after every
# stage: what ends the call keeps what was found. KEEP (default: ~/gpu-quarter) stays between two calls on one
# machine; OUT/plans of another run, as PLANS=FILE, spares the timing of plans.
set -u
part=$1
work=${KEEP:-$HOME/gpu-quarter}
pack=$work/pack
begun=${BEGUN:-$(date +%s)}
export BEGUN="$begun" KEEP="$work" OUT="${OUT:?}"
PATH=$PATH:/usr/local/cuda/bin
case $part in second) most=310 ;; *) most=345 ;; esac

now() { echo $(($(date +%s) - begun)); }
left() { echo $((most - $(now))); }
say() { printf '%3s s  %s\n' "$(now)" "$*" | tee -a "$OUT/verdicts.txt"; }

# save: one file of all logs, one of all records.
save() {
    for log in "$work"/*.log; do echo "==== ${log##*/}"; tail -c 300000 "$log"; done >"$OUT/logs.txt" 2>/dev/null
    python3 - "$work" >"$OUT/records.json" <<'PY'
import json, pathlib, sys
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    try:
        found[path.stem] = json.loads(path.read_text())
    except ValueError as error:
        found[path.stem] = str(error)
print(json.dumps(found))
PY
    cp "$work/cache/darknet-amp/plans" "$OUT/plans" 2>/dev/null
}

finish() {
    say "END $1"
    save
    exit "${2:-0}"
}

# limited SECONDS LOG COMMAND...: where it hangs is written before it is ended.
limited() {
    seconds=$1 log=$2
    shift 2
    "$@" >"$log" 2>&1 &
    child=$!
    until=$(($(date +%s) + seconds))
    while kill -0 $child 2>/dev/null; do
        if [ "$(date +%s)" -ge $until ]; then
            timeout -k 2 20 cuda-gdb -p $child -batch -ex 'info cuda kernels' -ex 'thread apply all bt 12' \
                >"$OUT/hang.txt" 2>&1
            kill -9 $child
            wait $child 2>/dev/null
            return 124
        fi
        sleep 0.1
    done
    wait $child
}

# task NAME VARIABLE PROGRAM [TEST]: one process of conformance.
if [ "$part" = task ]; then
    name=$2 variable=$3
    shift 3
    [ "$variable" = - ] || export "$variable"
    XDG_CACHE_HOME=$work/conformance limited 100 "$work/c-$name.txt" "$@"
    echo "$? $name" >>"$work/conformance.out"
    exit 0
fi

mkdir -p "$work/cache/darknet-amp" "$pack"
[ -z "${PLANS-}" ] || cp "$PLANS" "$work/cache/darknet-amp/plans"

# ---- what is there: also holds the driver up, logs clocks, and brings libraries into memory ----

nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader | tee -a "$OUT/verdicts.txt"
nvidia-smi dmon -s puc -d 2 -o T >"$OUT/dmon.txt" 2>&1 &
[ -x "$pack/bin/bench_step" ] || xz -dc "$2" 2>/dev/null | tar -C "$pack" -xf - 2>/dev/null ||
    python3 -m tarfile -e "$2" "$pack" || finish "FAIL unpack" 3
LD_LIBRARY_PATH=$(PYTHONPATH=scripts python3 -B -c 'import bench_lib, sys; print(bench_lib.library_path(sys.argv[1]))' "$pack")
export LD_LIBRARY_PATH PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME="$work/cache" TORCHINDUCTOR_CACHE_DIR="$work/inductor"
missing() { ldd "$pack"/bin/* "$pack"/lib/*.so* "$pack"/tests/* 2>&1 | awk '/not found/ { print $1 }' | sort -u; }
for library in $(missing); do
    at=$(find / -xdev -name "$library*" -not -path '/proc/*' 2>/dev/null | head -n 1)
    say "missing $library; found: ${at:-nowhere}"
    [ -z "$at" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$at")
done
[ -z "$(missing)" ] || finish "FAIL libraries: $(missing | tr '\n' ' ')" 3

# prepare_compiled NAME CFG MODE SIZE: what torch.compile makes of a net, kept for its turn. Nothing is timed now.
prepare_compiled() {
    (
        cd "$root" && mkdir -p "$work/p-$1" && PYTHONPATH=scripts python3 -B -c '
import bench_lib, pathlib, sys
print(bench_lib.make_cfg(pathlib.Path(sys.argv[1]).read_text(), 16, width=416, height=416, learning_rate="0.000001"))' \
            "$pack/cfg/$2.cfg" >"$work/p-$1/net.cfg" &&
            python3 scripts/torch_net.py "$work/p-$1/net.cfg" "$work/p-$1/w" --prepare "$work/p-$1" &&
            timeout 150 python3 scripts/torch_net.py "$work/p-$1/net.cfg" "$work/p-$1/w" --device cuda --amp fp16 \
                --layout channels_last --compile reduce-overhead --steps 1 --warmup 12
    ) >"$work/compile-$1.log" 2>&1
}

# ladder COMMAND...: after something of ours failed: the same with one way of the backend off, all at once.
ladder() {
    jobs=
    for way in AMPK_CUDA_UNRECORDED=1 AMPK_CUDA_SIDE_STREAM=0 AMPK_CUDA_EPILOGUE_SUMS=0 AMPK_CUDA_GRADIENT_SUMS=0 \
        AMPK_CUDA_IMAGE_FORWARD=0 AMPK_CUDA_IMAGE_GRADIENT=0 AMPK_CUDA_UNTIMED=1 CUDA_LAUNCH_BLOCKING=1; do
        (
            XDG_CACHE_HOME=$work/ladder-$way timeout -k 3 60 env "$way" "$@" >"$work/ladder-$way.log" 2>&1
            say "ladder $way: exit status $?; $(tail -n 1 "$work/ladder-$way.log" | cut -c1-100)"
        ) &
        jobs="$jobs $!"
    done
    wait $jobs
    timeout -k 3 80 compute-sanitizer --kernel-name kns=ampk_ --print-limit 5 "$@" >"$OUT/memcheck.txt" 2>&1
    save
}

# A process for each test of conv and for each other program, 14 at a time. Ways that a contest could choose are forced
# in tasks of their own: what a library gets wrong there, the contest leaves out.
conformance() {
    conv=$pack/tests/test_conformance_gpu_conv
    {
        for test in $("$conv" --list); do echo "conv.$test - $conv $test"; done
        for way in SIDE_STREAM=1:conv_backward EPILOGUE_SUMS=1:conv_forward_with GRADIENT_SUMS=1:conv_backward_summed \
            IMAGE_FORWARD=1:conv_forward_of; do
            echo "forced.${way%%=*} AMPK_CUDA_${way%%:*} $conv ${way#*:}"
        done
        for program in "$pack"/tests/test_conformance_gpu_*; do
            [ "$program" = "$conv" ] || echo "${program##*_gpu_} - $program"
        done
    } >"$work/tasks"
    rm -f "$work/conformance.out"
    AMPK_CUDA_UNTIMED=1 AMP_TEST_SEED=${AMP_TEST_SEED:-1} xargs -P 14 -L 1 sh "$0" task <"$work/tasks"
    bad=$(awk '$1 && !/ forced/ { print $2 "(" $1 ")" }' "$work/conformance.out" | tr '\n' ' ')
    ways=$(awk '$1 && / forced/ { print $2 "(" $1 ")" }' "$work/conformance.out" | tr '\n' ' ')
    say "conformance: $(wc -l <"$work/tasks") tasks, $(grep -c '^0 ' "$work/conformance.out") pass; failed or" \
        "ended (124): ${bad:-none}; forced ways: ${ways:-all right}"
    for name in $(awk '{ print $2 }' "$work/conformance.out"); do
        echo "== $name: $(grep " $name\$" "$work/conformance.out")"
        tail -n 25 "$work/c-$name.txt" | cut -c1-400
    done >"$work/conformance.log"
    save
}

bench() { # NAME SECONDS ARGUMENT...: a record of its own
    name=$1 seconds=$2
    shift 2
    [ "$seconds" -le "$(left)" ] || seconds=$(left)
    [ "$seconds" -gt 45 ] || { say "no time for $name" && return; }
    timeout -k 5 "$seconds" python3 scripts/bench-gpu --binaries "$pack" --budget $((seconds - 35)) \
        --json "$work/$name.json" "$@" >"$work/$name.log" 2>&1
    status=$?
    say "$name: exit status $status"
    grep -E '^  (\*\*|round 3|.* failed|fixed:|fp16:|fp32:)|disagree|weight gradients|^\| [a-z0-9-]+ (\||/)|fastest torch|^bench-gpu' \
        "$work/$name.log" | cut -c1-170 | tail -n 30 | tee -a "$OUT/verdicts.txt"
    save
    return $status
}

root=$PWD
if [ "$part" = first ]; then
    prepare_compiled tiny yolov3-tiny &
    timeout 60 "$pack/tests/gpu_device_properties" >"$OUT/device.json" 2>&1 && say "PASS device" || say "FAIL device"
    sed 's/^\[net\]/[net]\nmixed_precision=1/; s/^batch=.*/batch=4/; s/^subdivisions=.*/subdivisions=1/' \
        cfg/small160.cfg >"$work/small.cfg"
    small="$pack/bin/bench_step $work/small.cfg none --gpu 0 --steps 4 --warmup 4"
    AMPK_CUDA_UNTIMED=1 limited 80 "$work/smoke.log" $small
    status=$?
    say "smoke: exit status $status; $(grep -c 'cannot be recorded' "$work/smoke.log") not recorded;" \
        "$(tail -n 1 "$work/smoke.log" | cut -c1-120)"
    if [ $status != 0 ]; then
        ladder $small
        finish "FAIL smoke" 1
    fi
    conformance
    for dtype in fp16 bf16; do
        (
            XDG_CACHE_HOME=$work/l-$dtype timeout 80 python3 tests/gpu/loss_curves.py "$pack/bin/darknet" \
                --dtypes $dtype --json "$work/losses-$dtype.json" >"$work/losses-$dtype.log" 2>&1
            say "losses $dtype: exit status $?; $(tail -n 1 "$work/losses-$dtype.log" | cut -c1-110)"
        ) &
        curves="${curves-} $!"
    done
    wait $curves
    save
    bench tiny 120 --models yolov3-tiny-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.4 \
        --contestants fixed,torch,torch-graphs,fp16,stock-tf32,torch-compile
    [ $? != 1 ] || ladder $small
    bench yolov3 160 --models yolov3-416 --batches 16 --no-check --rounds 3 --seconds 0.4 \
        --contestants fixed,torch,torch-graphs,fp16
else
    prepare_compiled yolov3 yolov3 &
    compiled=$!
    XDG_CACHE_HOME=$work/invariants timeout 90 python3 tests/gpu/invariants.py "$pack/bin/darknet" --steps 4 \
        >"$work/invariants.log" 2>&1 &
    waited=$!
    for tool in memcheck racecheck; do
        for task in conv:conv_forward_of_large_images conv:conv_forward_of_images \
            image_gradient:conv_bn_backward_of_several_tiles_a_warp batchnorm: losses:; do
            program=${task%%:*} test=${task#*:}
            AMPK_CUDA_UNTIMED=1 AMPK_CUDA_IMAGE_FORWARD=1 timeout 90 compute-sanitizer --tool $tool \
                --kernel-name kns=ampk_ --error-exitcode 9 --report-api-errors no --print-limit 5 \
                "$pack/tests/test_conformance_gpu_$program" $test >"$work/s-$tool-$program-$test.log" 2>&1 &
            waited="$waited $!"
        done
    done
    [ ! -x .gpu/probe ] || { timeout 90 .gpu/probe >"$OUT/probe.txt" 2>&1 & waited="$waited $!"; }
    wait $waited
    say "invariants: $(tail -n 1 "$work/invariants.log" | cut -c1-200)"
    for log in "$work"/s-*.log; do
        say "$(basename "$log" .log): $(grep '^=========' "$log" | tail -n 1 | cut -c1-100); $(tail -n 1 "$log" | cut -c1-60)"
    done
    wait $compiled
    bench yolov3 235 --models yolov3-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.4 \
        --contestants fixed,torch,torch-graphs,torch-compile,fp16,stock,stock-tf32,fixed-one-stream,fixed-kernel-sums,fixed-library-image,fixed-library-image-gradient \
        --end-to-end
fi
finish "$part"
