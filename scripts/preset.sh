# Sourced by scripts after packages.sh, in the repository's root: which preset fits this machine.
#
#   choose_preset      $preset is cuda, which is configured then, or cpu; one line says why
#   find_gpus          $gpus: a line "NAME, COMPUTE CAPABILITY" for each NVIDIA GPU
#   find_cuda          the preset cuda is configured for these GPUs; with scripts/get-cuda.sh, if need be
#   find_nvcc          $nvcc: where CMake finds it too
#   match_gpus         $architectures: what nvcc must compile for these GPUs
#   lacks_cuda         the $reason is that CUDA or cuDNN is missing or too old
#   configure_cuda     the preset cuda, for $AMP_CUDA_ARCHITECTURES, else for $architectures, else as
#                      it was, or for all
#   print_cuda          one line on what these found
# find_*, match_gpus and configure_cuda end with status 1 and a $reason where there is none.

gpus=
unmatched=
architectures=
usual_cuda=/usr/local/cuda
pci_devices=/sys/bus/pci/devices
fetched_cuda=build/toolkit/nvidia/cu13
fetched_driver=580 # the oldest that CUDA 13 runs with
cuda_advice="for the GPU, install CUDA 12 or 13 (nvcc, libraries, headers) and cuDNN 8 or 9 (with headers), such as from NVIDIA's own package repository, and run this again"
driver_advice="for the GPU, install NVIDIA's driver, $fetched_driver or later, and run this again"

choose_preset() {
    advice=
    if find_gpus && find_cuda; then
        preset=cuda
        print_cuda
    else
        preset=cpu
        echo "Preset cpu: $reason${advice:+; $advice}"
    fi
}

print_cuda() {
    echo "Preset cuda: ${gpus:+$(name_gpus); }$configured${unmatched:+; $unmatched}"
}

# ---- the GPUs ----

find_gpus() {
    gpus=
    case ${CUDA_VISIBLE_DEVICES-all} in
    "" | -1)
        reason="CUDA_VISIBLE_DEVICES hides all GPUs"
        return 1
        ;;
    esac
    if ! command -v nvidia-smi >/dev/null; then
        reason="no NVIDIA GPU is here (nor its driver's nvidia-smi)"
        if has_nvidia_card; then
            reason="an NVIDIA card is here, but its driver's nvidia-smi is not"
            advice=$driver_advice
        fi
        return 1
    fi
    if ask_nvidia_smi; then return; fi
    ! has_nvidia_card || advice=$driver_advice
    return 1
}

ask_nvidia_smi() {
    status=0
    answer=$(timeout -k 5 30 nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>&1) ||
        status=$?
    gpus=$(echo "$answer" | grep -E '^.+, [0-9]+\.[0-9]+$') || gpus=
    first=$(echo "$answer" | head -n 1)
    case $status in
    0)
        [ -z "$gpus" ] || return 0
        reason="nvidia-smi lists no GPU with a compute capability${first:+ ($first)}"
        ;;
    124 | 137) reason="nvidia-smi gave no answer in 30 s" ;;
    *) reason="nvidia-smi ends with status $status${first:+ ($first)}" ;;
    esac
    gpus=
    return 1
}

has_nvidia_card() {
    for device in "$pci_devices"/*; do
        case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in
        "0x10de 0x03"*) return 0 ;;
        esac
    done
    return 1
}

# "NVIDIA A100, 2 x NVIDIA T4"
name_gpus() {
    echo "$gpus" | sed 's/, [^,]*$//' | sort | uniq -c |
        sed 's/^ *1 //; s/^ *\([0-9]*\) /\1 x /' | paste -s -d , | sed 's/,/, /g'
}

# ---- the toolkit ----

find_cuda() {
    if find_nvcc && match_gpus && configure_cuda; then return; fi
    get_cuda && find_nvcc && match_gpus && configure_cuda
}

# Where it cures the $reason. A build that could be configured once is left as it is.
get_cuda() {
    can_get_cuda || return 1
    echo "$reason"
    agreed "Get CUDA 13.0 and cuDNN 9.19 into build/toolkit (1.1 GB to load, no root)?" || return 1
    if ! load_cuda; then
        reason="$reason, and getting CUDA failed"
        return 1
    fi
    forget_nvcc
    export CUDA_PATH="$PWD/$fetched_cuda" # before another one that does not do
}

load_cuda() {
    status=0
    scripts/get-cuda.sh || status=$?
    [ $status = 3 ] || return $status
    install_missing python3-pip && scripts/get-cuda.sh
}

# The $reason is that CUDA or cuDNN is missing or too old.
lacks_cuda() {
    case $reason in
    *"nvcc is neither"* | *"names no architecture"* | *"too old for"* | *"AMP_CUDA needs"*) ;;
    *"find CUDAToolkit"* | *"cuDNN "*" is too old"* | *"CUDA compiler"*) ;;
    *) return 1 ;;
    esac
}

can_get_cuda() {
    lacks_cuda && has_new_gpu && [ "$nvcc" != "$PWD/$fetched_cuda/bin/nvcc" ] || return 1
    driver=$(timeout -k 5 30 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    case $driver in [0-9]*.*) ;; *) driver= ;; esac
    if [ -z "$driver" ] || [ "${driver%%.*}" -lt $fetched_driver ]; then
        advice="$cuda_advice; or update NVIDIA's driver${driver:+ $driver} to $fetched_driver or later, with which this gets CUDA and cuDNN itself"
        return 1
    fi
    [ -e build/cuda/Makefile ] && [ -x "$(cached_nvcc)" ] || return 0
    advice="$cuda_advice; or delete build/cuda, and it gets CUDA and cuDNN itself"
    return 1
}

# One that CUDA 13 compiles for.
has_new_gpu() {
    while read -r gpu; do
        capability=${gpu##*, }
        [ "${capability%.*}${capability#*.}" -lt 75 ] || return 0
    done <<GPUS
$gpus
GPUS
    return 1
}

forget_nvcc() {
    rm -rf build/cuda/CMakeCache.txt build/cuda/CMakeFiles
}

# What build/cuda was configured with: CMake keeps it.
cached_nvcc() {
    sed -n '/NOTFOUND$/d; s/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' build/cuda/CMakeCache.txt 2>/dev/null || :
}

find_nvcc() {
    for nvcc in "$(cached_nvcc)" ${CUDA_PATH:+"$CUDA_PATH/bin/nvcc"} ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} \
        "$PWD/$fetched_cuda/bin/nvcc" "$(command -v nvcc)" "$usual_cuda/bin/nvcc"; do
        [ ! -x "$nvcc" ] || return 0
    done
    nvcc=
    reason="${gpus:+$(name_gpus) is here, but }nvcc is neither on PATH nor in $usual_cuda/bin"
    advice=$cuda_advice
    return 1
}

# For each GPU the newest architecture that is not newer than it: within a generation its code runs as
# it is, on a later one the driver translates the PTX. $unmatched tells of GPUs for which there is none,
# or only an older generation's.
match_gpus() {
    offered=$("$nvcc" --list-gpu-arch 2>/dev/null | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n)
    architectures=
    unmatched=
    if [ -z "$offered" ]; then
        reason="$nvcc --list-gpu-arch names no architecture"
        advice=$cuda_advice
        return 1
    fi
    while read -r gpu; do
        capability=${gpu##*, }
        match=$(newest_until "${capability%.*}${capability#*.}")
        case $match in
        "") note_unmatched "${gpu%, *} ($capability) is too old for $nvcc" ;;
        "${capability%.*}"?) ;;
        *) note_unmatched "${gpu%, *} ($capability) is newer than what $nvcc knows, and is tried with PTX for $match" ;;
        esac
        architectures="$architectures $match"
    done <<GPUS
$(echo "$gpus" | sort -u)
GPUS
    architectures=$(echo "$architectures" | tr -s ' ' '\n' | sort -nu | sed '/^$/d' | paste -s -d ';')
    [ -z "$architectures" ] || return 0
    reason="$unmatched: 7.5 (Turing) is the oldest, 7.0 (Volta) with CUDA 12"
    return 1
}

newest_until() {
    for architecture in $offered; do
        [ "$architecture" -lt 70 ] || [ "$architecture" -gt "$1" ] || echo "$architecture"
    done | tail -n 1
}

note_unmatched() {
    unmatched="${unmatched:+$unmatched, }$1"
}

# ---- the build ----

configure_cuda() {
    folder=build/cuda
    for_what=${AMP_CUDA_ARCHITECTURES:-$architectures}
    cached=$(cached_nvcc)
    [ -z "$cached" ] || [ -x "$cached" ] || forget_nvcc
    was_there=0
    [ ! -e $folder/CMakeCache.txt ] || was_there=1
    mkdir -p $folder
    if cmake --preset cuda ${for_what:+-DAMP_CUDA_ARCHITECTURES="$for_what"} >$folder/configure.log 2>&1; then
        configured=$(sed -n 's/^-- \(CUDA [0-9].*\)/\1/p' $folder/configure.log)
        return
    fi
    # What was not found is searched again next time.
    [ $was_there = 1 ] || forget_nvcc
    reason="${gpus:+$(name_gpus) is here, but }the preset cuda cannot be configured ($(cmake_reason $folder/configure.log); the rest is in $folder/configure.log)"
    advice=$cuda_advice
    return 1
}

# The first error's own words, up to an empty line or the files that it came through.
cmake_reason() {
    awk '/^CMake Error/ { found = 1; sub(/^CMake Error( at [^ ]+ \([^)]*\))?: */, "") }
        found && text && /^( *$|Call Stack)/ { exit }
        found && !/^ *$/ { sub(/^ +/, ""); gsub(/  +/, " "); text = text (text ? " " : "") $0 }
        END { sub(/[.]$/, "", text); print text ? text : "CMake gave no reason" }' "$1"
}
