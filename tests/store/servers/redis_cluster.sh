#!/usr/bin/env bash
# A Redis Cluster of three nodes for the tests of ctest's label "servers", on free ports of this machine.
#
# usage: redis_cluster.sh start|stop FOLDER    FOLDER/url then has the URL of a store in it
set -euo pipefail
source "$(dirname "$0")/common.sh"

start() {
  nodes=()
  for i in 1 2 3; do
    # The port of the nodes' own talk is told, too: the usual one, 10000 higher, may be no port.
    port=$(free_port)
    mkdir -p "$folder/$i"
    start_redis "$folder/$i" "$port" --cluster-enabled yes --cluster-port "$(free_port)"
    await 100 redis-cli -p "$port" ping
    nodes+=("127.0.0.1:$port")
  done
  redis-cli --cluster create "${nodes[@]}" --cluster-yes > "$folder/create.log"
  for node in "${nodes[@]}"; do
    await 300 sh -c "redis-cli -p ${node#*:} cluster info | grep -q cluster_state:ok"
  done
  echo "redis://${nodes[0]}" > "$folder/url"
}

run "$@"
