# What the servers of the tests have in common: free ports, waiting, and an end to every process.
# Sourced by the others; each has a function "start".

# A port that nobody uses at this moment. Servers that lose a race for it do not start, and so does the test.
free_port() {
  python3 -c 'import socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    print(s.getsockname()[1])'
}

# await TENTHS COMMAND...: until it succeeds, for so many tenths of a second.
await() {
  local tries=$1
  shift
  until "$@" > /dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "$0: gave up waiting for: $*" >&2; return 1; }
    sleep 0.1
  done
}

# need PROGRAM...: a missing one is a failure, and no reason to pass over the tests.
need() {
  local program
  for program in "$@"; do
    command -v "$program" > /dev/null && continue
    echo "$0: no $program here; tools/install-deps.sh servers installs it" >&2
    return 1
  done
}

# start_redis FOLDER PORT [OPTION...]
start_redis() {
  need redis-server redis-cli python3
  local in=$1 port=$2
  shift 2
  redis-server --bind 127.0.0.1 --port "$port" --dir "$in" --save '' --appendonly no \
    --daemonize yes --pidfile "$in/server.pid" --logfile "$in/server.log" "$@" > /dev/null
}

# They keep nothing, so that none is asked to end in order, which takes Ceph ten seconds.
stop() {
  local file pid
  while IFS= read -r file; do
    pid=$(cat "$file")
    # The number may have gone to another process since an earlier run left the file behind.
    case $(cat "/proc/$pid/comm" 2> /dev/null || true) in
      redis-server | ceph-mon | ceph-osd | radosgw) kill -9 "$pid" 2> /dev/null || true ;;
    esac
  done < <(find "$folder" -name '*.pid' 2> /dev/null)
  await 50 rm -rf "$folder" # until none of them writes there any more
}

run() {
  folder=${2:?usage: $0 start|stop FOLDER}
  case $1 in
    start)
      stop # one that an earlier run left behind
      mkdir -p "$folder"
      # Not "start || ...": then none of its steps that fails would end it.
      trap '[ $? -eq 0 ] || stop_after_failure' EXIT
      start
      ;;
    stop) stop ;;
    *) echo "usage: $0 start|stop FOLDER" >&2; exit 2 ;;
  esac
}

stop_after_failure() {
  find "$folder" -name '*.log' -exec tail -n 20 {} + >&2 || true
  stop
}
