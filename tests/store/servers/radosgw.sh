#!/usr/bin/env bash
# An S3 service for the tests of ctest's label "servers": a Ceph of one node that keeps everything in
# memory, and its gateway, on free ports of this machine.
#
# usage: radosgw.sh start|stop FOLDER    FOLDER/url then has the URL of a store in it
set -euo pipefail
source "$(dirname "$0")/common.sh"

# Access needs keys (cephx), and the monitor both of its protocols: without them the gateway hangs.
write_configuration() {
  cat > "$folder/ceph.conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$mon_v2,v1:127.0.0.1:$mon_v1]
mon initial members = a
public addr = 127.0.0.1
run dir = $folder/run
admin socket =
pid file = $folder/run/\$name.pid
log file = $folder/run/\$name.log
keyring = $folder/keyring
mon data = $folder/mon
mon data avail crit = 1
mon data avail warn = 2
mon allow pool size one = true
mon warn on pool no redundancy = false
osd data = $folder/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:$gateway
rgw dns name = localhost
rgw enable usage log = false
CONF
}

make_key() {
  local name=$1
  shift
  ceph-authtool "$folder/keyring" --gen-key -n "$name" "$@" > /dev/null
}

start_monitor() {
  ceph-authtool --create-keyring "$folder/keyring" > /dev/null
  make_key mon. --cap mon 'allow *'
  make_key client.admin --cap mon 'allow *' --cap osd 'allow *'
  make_key client.rgw.a --cap mon 'allow rw' --cap osd 'allow rwx'
  make_key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  monmaptool --create --addv a "[v2:127.0.0.1:$mon_v2,v1:127.0.0.1:$mon_v1]" \
    --fsid "$(sed -n 's/^fsid = //p' "$folder/ceph.conf")" "$folder/monmap" > /dev/null
  ceph-mon --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring"
  ceph-mon -i a
}

start_storage() {
  local id
  id=$(cat /proc/sys/kernel/random/uuid)
  ceph osd new "$id" > /dev/null
  ceph-osd -i 0 --mkfs --osd-uuid "$id" > "$folder/run/mkfs.log" 2>&1
  ceph-osd -i 0 > /dev/null
}

# curl signs as the library does.
make_bucket() {
  curl --silent --fail --output /dev/null --request PUT --aws-sigv4 aws:amz:us-east-1:s3 \
    --user "tqcache-access:tqcache-secret" --header "x-amz-content-sha256: UNSIGNED-PAYLOAD" \
    "http://127.0.0.1:$gateway/tqcache"
}

start() {
  need ceph-mon ceph-osd ceph ceph-authtool monmaptool radosgw radosgw-admin curl python3
  mon_v2=$(free_port) mon_v1=$(free_port) gateway=$(free_port)
  mkdir -p "$folder/mon" "$folder/osd" "$folder/run"
  export CEPH_CONF=$folder/ceph.conf
  write_configuration
  start_monitor
  start_storage
  radosgw -n client.rgw.a
  await 1200 curl --silent --output /dev/null "http://127.0.0.1:$gateway/"
  radosgw-admin user create --uid=tqcache --display-name=tqcache \
    --access-key=tqcache-access --secret-key=tqcache-secret > /dev/null 2>&1
  await 100 make_bucket
  echo "s3://tqcache?endpoint=http://127.0.0.1:$gateway" > "$folder/url"
}

run "$@"
