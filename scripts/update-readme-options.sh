#!/bin/sh
# Puts the options table of plugin/decide/options.c between README.md's option markers.
#
#   scripts/update-readme-options.sh [README]
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
readme=${1:-$root/README.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for marker in begin end; do
    grep -qx "<!-- options:$marker -->" "$readme" || {
        echo "$0: $readme has no line <!-- options:$marker -->" >&2
        exit 1
    }
done
${CC:-cc} -std=gnu11 -O1 -o "$work/print" "$root"/plugin/decide/print_options.c \
    "$root"/plugin/decide/options.c "$root"/plugin/decide/cfg_file.c -lm
"$work/print" >"$work/table"
awk -v table="$work/table" '
    /^<!-- options:end -->$/ { inside = 0 }
    !inside { print }
    /^<!-- options:begin -->$/ { inside = 1; while ((getline line < table) > 0) print line }
' "$readme" >"$work/readme"
cat "$work/readme" >"$readme"
