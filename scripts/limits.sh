# Sourced by scripts/gpu-check.sh: programs that may hang, one after another or many at once, within the time of a call.
#
#   within SECONDS                    so many, or as many as the call has left
#   attempt SECONDS NAME COMMAND...   its words are NAME.log; status 124: its time was up
#   together SECONDS NAME...          run_task NAME for each, as many at once as $at_once
#
# Variables of the caller: $begun, $most, $results, $work, $at_once. run_task has its seconds in $seconds.

now() { echo $(($(date +%s) - begun)); }

# within SECONDS: so many, or as many as there are; the last five are for the end.
within() {
    left=$((most - 5 - $(now)))
    echo $(($1 < left ? $1 : left))
}

# limited SECONDS COMMAND...: one that runs so long may hang: where it stands is written before it is ended.
limited() {
    [ "$1" -ge 1 ] || return 124 # timeout has no limit then
    end=$(($(date +%s) + $1))
    look=$(($1 > 40 ? end - 20 : end - $1 / 2))
    timeout -k 5 "$@" &
    child=$!
    while kill -0 $child 2>/dev/null; do
        [ "$(date +%s)" -lt $look ] || { look_at $child && look=$((end + 60)); }
        sleep 0.2
    done
    wait $child
    status=$?
    [ $status -lt 124 ] || [ "$(date +%s)" -lt $end ] || status=124
    return $status
}

# look_at PROCESS: or what it started last, which is the program.
look_at() {
    program=$1
    while next=$(cut -d ' ' -f 1 "/proc/$program/task/$program/children" 2>/dev/null) && [ -n "$next" ]; do
        program=$next
    done
    {
        echo "== $name"
        timeout -k 2 15 cuda-gdb -p "$program" -batch -ex 'info cuda kernels' -ex 'thread apply all bt 12'
    } >>"$results/hang.txt" 2>&1
    return 0
}

# attempt SECONDS NAME COMMAND...: its words are NAME.log. It runs again where an engine that made the device fault is
# left out the next time.
attempt() {
    until=$(($(date +%s) + $1))
    name=$2
    shift 2
    for start_number in 1 2 3 4 5; do
        limited $((until - $(date +%s))) "$@" >"$results/$name.log" 2>&1
        status=$?
        case $status in 0 | 75 | 124) break ;; esac
        [ $((until - $(date +%s))) -gt 1 ] || break
        grep -q 'left out from the next start on' "$results/$name.log" || break
    done
    return $status
}

# together SECONDS TASK...: as many at once as the card and the host hold. $work/ended then has a line for each: status,
# seconds, name.
together() {
    all_until=$(($(date +%s) + $(within "$1")))
    shift
    : >"$work/ended"
    begun_tasks=0
    waited=
    for task in "$@"; do
        while [ $((begun_tasks - $(wc -l <"$work/ended"))) -ge "$at_once" ]; do sleep 0.1; done
        begun_tasks=$((begun_tasks + 1))
        (
            start=$(date +%s)
            seconds=$((all_until - start))
            if [ $seconds -ge 2 ]; then
                run_task "$task"
                status=$?
            else
                echo "no time left" >"$results/$task.log"
                status=75
            fi
            echo "$status $(($(date +%s) - start)) $task" >>"$work/ended"
        ) &
        waited="$waited $!"
    done
    wait $waited
}
