#!/usr/bin/env bash
# A Redis server for the tests of ctest's label "servers", on a free port of this machine.
#
# usage: redis.sh start|stop FOLDER    FOLDER/url then has the URL of a store in it
set -euo pipefail
source "$(dirname "$0")/common.sh"

start() {
  port=$(free_port)
  start_redis "$folder" "$port" --requirepass secret
  await 100 redis-cli -p "$port" -a secret --no-auth-warning ping
  echo "redis://:secret@127.0.0.1:$port" > "$folder/url"
}

run "$@"
