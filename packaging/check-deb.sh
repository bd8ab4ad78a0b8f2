#!/bin/sh
# Runs the steps of packaging/Dockerfile without Docker, each stage in a fresh Debian 12: builds the Debian package
# and installs it. Then trains the demo's net there for some iterations.
#
#   packaging/check-deb.sh [FOLDER]     FOLDER for the Debians, default build/debian; its base/, which is made by
#                                       debootstrap, is kept for the next time
#
# Needs root and apt's network. At the end Debian's own package darknet is installed, to see that ours replaces it.
set -eu
cd "$(dirname "$0")/.."

mkdir -p "${1-build/debian}"
folder=$(cd "${1-build/debian}" && pwd)
. scripts/packages.sh
install_missing debootstrap

unmount() { ! mountpoint -q "$folder/$stage/proc" || umount "$folder/$stage/proc"; }

inside() { # COMMANDS; of this machine's environment they see a proxy, as in Docker, and nothing else
    chroot "$folder/$stage" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        LC_ALL=C.UTF-8 ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        sh -euc "cd $place; $1"
}

from() { # debian:bookworm [AS NAME]
    [ "$1" = debian:bookworm ] || { echo "check-deb: FROM $1: only debian:bookworm is made here" >&2; exit 1; }
    unmount
    stage=${3-last} place=/
    unmount
    rm -rf "${folder:?}/$stage"
    cp -a "$folder/base" "$folder/$stage"
    cp /etc/resolv.conf "$folder/$stage/etc/"
    echo force-unsafe-io >"$folder/$stage/etc/dpkg/dpkg.cfg.d/unsafe-io" # as in Docker's Debian: nobody keeps it
    mount --bind /proc "$folder/$stage/proc" # the program finds its libraries from its own place, which it asks /proc
}

copy() { # . . | --from=NAME FILE FILE
    case $1 in
    --from=*) cp -a "$folder/${1#--from=}$2" "$folder/$stage$3" ;;
    *) git ls-files -z | tar -c --null -T - | tar -x --no-same-owner -C "$folder/$stage$place" ;;
    esac
}

[ -e "$folder/base/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$folder/base"
stage=last
trap unmount EXIT
# One step a line: without remarks, lines that end in a backslash joined.
sed -e '/^#/d; /^$/d' -e ':more' -e '/\\$/{N; s/\\\n *//; b more' -e '}' packaging/Dockerfile >"$folder/steps"
while read -r word rest <&3; do
    echo "== $word $rest"
    # shellcheck disable=SC2086 # several words
    case $word in
    FROM) from $rest ;;
    COPY) copy $rest ;;
    RUN) inside "$rest" ;;
    WORKDIR) place=$rest && mkdir -p "$folder/$stage$place" ;;
    ENTRYPOINT) [ "$rest" = '["darknet"]' ] ;;
    *) echo "check-deb: $word: no step that is known here" >&2 && exit 1 ;;
    esac
done 3<"$folder/steps"

cp scripts/make-demo-data.py "$folder/build/darknet-amp.deb" "$folder/last/work/"
cat >"$folder/last/work/run.sh" <<'RUN'
[ "$(dpkg -S /usr/bin/darknet)" = "darknet-amp: /usr/bin/darknet" ]
apt-get -q update
apt-get -q -y install --no-install-recommends dataset-fashion-mnist python3-numpy python3-pil
python3 make-demo-data.py --out data --train 64 --valid 16
sed 's/^\[net\]/[net]\nmixed_precision=1\nseed=1/; s/^max_batches=.*/max_batches=20/' \
    /usr/share/doc/darknet-amp/examples/demo.cfg >demo.cfg
sed 's,^backup.*,,' data/demo.data >demo.data
echo backup=/work >>demo.data
darknet amp plan demo.cfg | head -5
darknet amp data demo.data demo.cfg --sheet sheet.jpg 2>data.log || { tail data.log; exit 1; }
darknet detector train demo.data demo.cfg >train.log 2>&1 || { tail train.log; exit 1; }
tail -n 2 train.log
[ -s demo_final.weights.amp ]
darknet detector map demo.data demo.cfg demo_final.weights | tail -n 3
apt-get -q -y install --no-install-recommends darknet
[ "$(dpkg -S /usr/bin/darknet)" = "darknet: /usr/bin/darknet" ]
apt-get -q -y install --no-install-recommends ./darknet-amp.deb
[ "$(dpkg -S /usr/bin/darknet)" = "darknet-amp: /usr/bin/darknet" ]
apt-get -q -y remove darknet-amp
[ ! -e /usr/bin/darknet ]
RUN
inside ". ./run.sh"
echo "The package builds, installs, trains and goes away"
