# What pages about llama-server run unseen: tests/packaging/run_documents.py.

# ask FIELDS FILE: prints a request, whose prompt is the text of FILE, with more fields.
ask() {
  python3 -c 'import json, sys
print(json.dumps({"prompt": open(sys.argv[2]).read(), "n_predict": 4} | json.loads(sys.argv[1])))' "$@"
}

# await PORT: until the server there is ready.
await() {
  for _ in {1..600}; do curl -sf "localhost:$1/health" > /dev/null && return; sleep .1; done
  return 1
}

# reused PORT REQUEST: prints how many tokens of the prompt the server had, and keeps its answer.
reused() {
  curl -s "localhost:$1/completion" -d "@$2" > answer.json
  python3 -c 'import json; print(json.load(open("answer.json"))["timings"]["cache_n"])'
}
