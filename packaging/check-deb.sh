#!/bin/sh
# Installs the Debian package into a fresh Debian 12 and trains the demo's net there for some iterations.
#
#   packaging/check-deb.sh [FOLDER]     FOLDER of the fresh Debian, default build/debian, made by debootstrap
#                                       where it is not there yet
#
# Needs root and apt's network. Builds the package from build/ (preset cpu, built) first. Debian's own package
# darknet is installed before, to see that ours replaces it.
set -eu
cd "$(dirname "$0")/.."

debian=${1-build/debian}
. scripts/packages.sh
install_missing debootstrap dpkg-dev file

rm -rf build/package
(cd build && cpack -G DEB -B "$PWD/package")
[ -e "$debian/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$debian"
rm -rf "$debian/check"
mkdir "$debian/check"
cp build/package/*.deb "$debian/check/darknet-amp.deb"
cp scripts/make-demo-data.py "$debian/check/"
cp /etc/resolv.conf "$debian/etc/"
cat >"$debian/check/run.sh" <<'RUN'
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt-get -q update
apt-get -q -y install --no-install-recommends darknet dataset-fashion-mnist python3-numpy python3-pil
apt-get -q -y install --no-install-recommends /check/darknet-amp.deb
[ "$(dpkg -S /usr/bin/darknet)" = "darknet-amp: /usr/bin/darknet" ]
cd /check
python3 make-demo-data.py --out data --train 64 --valid 16
sed 's/^\[net\]/[net]\nmixed_precision=1\nseed=1/; s/^max_batches=.*/max_batches=20/' \
    /usr/share/doc/darknet-amp/examples/demo.cfg >demo.cfg
sed 's,^backup.*,,' data/demo.data >demo.data
echo backup=/check >>demo.data
darknet amp plan demo.cfg | head -5
darknet detector train demo.data demo.cfg >train.log 2>&1 || { tail train.log; exit 1; }
tail -n 2 train.log
[ -s demo_final.weights.amp ]
darknet detector map demo.data demo.cfg demo_final.weights | tail -n 3
apt-get -q -y remove darknet-amp
[ ! -e /usr/bin/darknet ]
RUN
mount --bind /proc "$debian/proc" # the program finds its libraries from its own place, which it asks /proc
trap 'umount "$debian/proc"' EXIT
chroot "$debian" sh /check/run.sh
echo "The package installs, trains and goes away"
