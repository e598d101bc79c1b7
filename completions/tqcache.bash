# bash completion for tqcache.
# Generated from the flags of the program by `tqcache --write-reference DIR`. Do not edit.

_tqcache() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  local verb=${COMP_WORDS[1]} first=2
  COMPREPLY=()
  words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
  files() { mapfile -t COMPREPLY < <(compgen "$1" -- "$cur"); }
  # bash takes --flag=value apart.
  if [[ $cur == = ]]; then
    cur=""
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if ((COMP_CWORD == 1)); then
    words "prefill convert migrate compact rekey generate chat serve info verify diff selftest doctor bench advise profile eval store help version completion --help --version"
    return
  fi
  case $verb in
    help | completion | eval | store)
      first=3
      verb+=" ${COMP_WORDS[2]}"
      ;;
  esac
  if ((COMP_CWORD < first)); then
    case ${COMP_WORDS[1]} in
      help) words "prefill convert migrate compact rekey generate chat serve info verify diff selftest doctor bench advise profile eval store" ;;
      completion) words "bash zsh fish" ;;
      eval) words "ppl kld needle jsonl memory cache --help" ;;
      store) words "put get find ls info rm gc stats check forget copy --help" ;;
    esac
    return
  fi
  case $verb in
    "prefill")
      case $prev in
        -m | --model) files -f; return ;;
        -p | --prompt) :; return ;;
        --file) :; return ;;
        --ids) :; return ;;
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --tokens) :; return ;;
        --dtype) :; return ;;
        --compress) words "zstd planes none"; return ;;
        --level) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        -o | --output) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model -p --prompt --file --ids --no-special --store --no-store --store-read-only --salt-file --tokens --dtype --no-tokens --compress --level -t --threads --max-memory -o --output -f --force --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "convert")
      case $prev in
        -o | --output) files -f; return ;;
        -b | --bits) :; return ;;
        --config) :; return ;;
        --profile) files -f; return ;;
        --target-mse) :; return ;;
        --target-kld) :; return ;;
        --compress) words "zstd planes none"; return ;;
        --level) :; return ;;
        --tokens) :; return ;;
        -m | --model) files -f; return ;;
        --ids-file) files -f; return ;;
        --llama-rotation) words "auto on off"; return ;;
        --probe) :; return ;;
        --row) :; return ;;
        --llama-turbo-layout) :; return ;;
        --artifacts) files -d; return ;;
        --to) words "tqkv mlx-lm llama-session llama-seq hf npz"; return ;;
        --mlx-lm-version) :; return ;;
        --kv-bits) words "2 4 8"; return ;;
        --kv-group-size) words "32 64 128"; return ;;
        --llama-version) :; return ;;
        --llama-k-type) :; return ;;
        --llama-v-type) :; return ;;
        --llama-flash-attention) words "on off"; return ;;
        --llama-streams) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -o --output -b --bits --config --profile --target-mse --target-kld --no-tokens --compress --level --tokens -m --model --ids-file --llama-rotation --probe --row --llama-turbo-layout --artifacts --to --mlx-lm-version --kv-bits --kv-group-size --llama-version --llama-k-type --llama-v-type --llama-flash-attention --llama-server-tokens --llama-streams -t --threads --max-memory -f --force --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "migrate")
      case $prev in
        -o | --output) files -f; return ;;
        --jobs) :; return ;;
        --compress) words "zstd planes none"; return ;;
        --level) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -o --output --in-place --no-backup --dry-run -r --recursive --jobs --no-tokens --compress --level -f --force --key-file -q --quiet --json"
        return
      fi
      files -f
      ;;
    "compact")
      case $prev in
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -t --threads --max-memory --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "rekey")
      case $prev in
        -o | --output) files -f; return ;;
        --old-key-file) files -f; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -o --output --old-key-file --decrypt -t --threads --max-memory -f --force --key-file -q --quiet --json"
        return
      fi
      files -f
      ;;
    "generate")
      case $prev in
        -m | --model) files -f; return ;;
        -c | --cache) files -f; return ;;
        -p | --prompt) :; return ;;
        --file) :; return ;;
        --ids) :; return ;;
        -n | --max-new-tokens) :; return ;;
        --save) files -f; return ;;
        --tokens) :; return ;;
        --temperature) :; return ;;
        --top-k) :; return ;;
        --top-p) :; return ;;
        --min-p) :; return ;;
        --repeat-penalty) :; return ;;
        --repeat-last-n) :; return ;;
        --logit-bias) :; return ;;
        --seed) :; return ;;
        --stop) :; return ;;
        -b | --bits) :; return ;;
        --config) :; return ;;
        --profile) files -f; return ;;
        --store) :; return ;;
        --store-name) :; return ;;
        --salt-file) files -f; return ;;
        --compress) words "zstd planes none"; return ;;
        --level) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --scorer) words "exact fast"; return ;;
        --activations) words "8 16"; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model -c --cache -p --prompt --file --ids --no-special -n --max-new-tokens --save --reuse --append --tokens --temperature --top-k --top-p --min-p --repeat-penalty --repeat-last-n --logit-bias --seed --stop -b --bits --config --profile --store --no-store --store-read-only --store-name --salt-file --no-tokens --compress --level -t --threads --max-memory --scorer --activations --map --verify-digest -f --force --key-file --require-encrypted -q --quiet --json"
        return
      fi
      :
      ;;
    "chat")
      case $prev in
        -m | --model) files -f; return ;;
        -c | --cache) files -f; return ;;
        --system) :; return ;;
        --system-file) files -f; return ;;
        -n | --max-new-tokens) :; return ;;
        --template) files -f; return ;;
        --date) :; return ;;
        --save) files -f; return ;;
        --temperature) :; return ;;
        --top-k) :; return ;;
        --top-p) :; return ;;
        --min-p) :; return ;;
        --repeat-penalty) :; return ;;
        --repeat-last-n) :; return ;;
        --logit-bias) :; return ;;
        --seed) :; return ;;
        --stop) :; return ;;
        -b | --bits) :; return ;;
        --config) :; return ;;
        --profile) files -f; return ;;
        --store) :; return ;;
        --store-name) :; return ;;
        --salt-file) files -f; return ;;
        --compress) words "zstd planes none"; return ;;
        --level) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --scorer) words "exact fast"; return ;;
        --activations) words "8 16"; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model -c --cache --system --system-file -n --max-new-tokens --template --date --no-think --save --temperature --top-k --top-p --min-p --repeat-penalty --repeat-last-n --logit-bias --seed --stop -b --bits --config --profile --store --no-store --store-read-only --store-name --salt-file --no-tokens --compress --level -t --threads --max-memory --scorer --activations --map --verify-digest -f --force --key-file --require-encrypted -q --quiet"
        return
      fi
      :
      ;;
    "serve")
      case $prev in
        --upstream) :; return ;;
        --model-id) :; return ;;
        --template) files -f; return ;;
        --date) :; return ;;
        --queue) :; return ;;
        --scorer) words "exact fast"; return ;;
        --activations) words "8 16"; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --listen) :; return ;;
        --slot-dir) files -d; return ;;
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --config) :; return ;;
        --profile) files -f; return ;;
        -m | --model) files -f; return ;;
        --min-tokens) :; return ;;
        --save-idle) :; return ;;
        --max-bytes) :; return ;;
        --max-write) :; return ;;
        --page-file) files -f; return ;;
        --api-key-file) files -f; return ;;
        --admin-key-file) files -f; return ;;
        --upstream-key-file) files -f; return ;;
        --max-body) :; return ;;
        --max-connections) :; return ;;
        --max-connections-per-address) :; return ;;
        --allow-host) :; return ;;
        --allow-origin) :; return ;;
        --upstream-timeout) :; return ;;
        --grace) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --upstream --model-id --template --date --queue --show-prompts --scorer --activations --verify-digest -t --threads --max-memory --listen --slot-dir --store --salt-file --config --profile -m --model --min-tokens --save-idle --max-bytes --max-write --share-tenants --headers --page-file --api-key-file --admin-key-file --page-all --upstream-key-file --max-body --max-connections --max-connections-per-address --allow-host --allow-origin --upstream-timeout --grace --key-file -q --quiet"
        return
      fi
      :
      ;;
    "info")
      case $prev in
        -m | --model) files -f; return ;;
        --row) :; return ;;
        --llama-turbo-layout) :; return ;;
        --artifacts) files -d; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --sections --show-text -m --model --row --llama-turbo-layout --artifacts --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "verify")
      case $prev in
        -m | --model) files -f; return ;;
        --probe) :; return ;;
        --limit) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --probe --limit -t --threads --max-memory --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "diff")
      case $prev in
        --tokens) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --tokens -t --threads --max-memory --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "selftest")
      case $prev in
      esac
      if [[ $cur == -* ]]; then
        words "--help -q --quiet --json"
        return
      fi
      :
      ;;
    "doctor")
      case $prev in
      esac
      if [[ $cur == -* ]]; then
        words "--help -q --quiet --json"
        return
      fi
      :
      ;;
    "bench")
      case $prev in
        -m | --model) files -f; return ;;
        --device) words "cpu cuda"; return ;;
        --backend) words "affine baseline turbo"; return ;;
        --config) :; return ;;
        --prompt-tokens) :; return ;;
        --generation-tokens) :; return ;;
        --file) files -f; return ;;
        --seed) :; return ;;
        --warmup) :; return ;;
        --repeats) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --scorer) words "exact fast"; return ;;
        --activations) words "8 16"; return ;;
        --html) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --device --backend --config --prompt-tokens --generation-tokens --file --seed --warmup --repeats -t --threads --max-memory --scorer --activations --html -f --force -q --quiet --json"
        return
      fi
      :
      ;;
    "advise")
      case $prev in
        -m | --model) files -f; return ;;
        --file) files -f; return ;;
        --max-kld) :; return ;;
        --max-bytes) :; return ;;
        --cache-tokens) :; return ;;
        --window) :; return ;;
        --max-windows) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --file --max-kld --max-bytes --cache-tokens --window --max-windows -t --threads --max-memory --html -f --force -q --quiet --json"
        return
      fi
      :
      ;;
    "profile")
      case $prev in
        -m | --model) files -f; return ;;
        --file) files -f; return ;;
        --from) files -f; return ;;
        -o | --output) files -f; return ;;
        --window) :; return ;;
        --max-windows) :; return ;;
        --depth) :; return ;;
        --tokens) :; return ;;
        --features) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --file --quick --from -o --output --window --max-windows --depth --tokens --features -t --threads --max-memory -f --force -q --quiet --json"
        return
      fi
      :
      ;;
    "eval ppl")
      case $prev in
        -m | --model) files -f; return ;;
        --file) files -f; return ;;
        --ids) :; return ;;
        --configs) :; return ;;
        --profile) files -f; return ;;
        --window) :; return ;;
        --max-windows) :; return ;;
        --activations) words "8 16"; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --file --ids --configs --profile --window --max-windows --as-served --activations -t --threads --max-memory --html -f --force -q --quiet --json"
        return
      fi
      :
      ;;
    "eval kld")
      case $prev in
        -m | --model) files -f; return ;;
        --file) files -f; return ;;
        --ids) :; return ;;
        --configs) :; return ;;
        --profile) files -f; return ;;
        --window) :; return ;;
        --max-windows) :; return ;;
        --activations) words "8 16"; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --file --ids --configs --profile --window --max-windows --as-served --activations -t --threads --max-memory --html -f --force -q --quiet --json"
        return
      fi
      :
      ;;
    "eval needle")
      case $prev in
        -m | --model) files -f; return ;;
        --configs) :; return ;;
        --max-new-tokens) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
        --file) files -f; return ;;
        --lengths) :; return ;;
        --depths) :; return ;;
        --trials) :; return ;;
        --seed) :; return ;;
        --needle) :; return ;;
        --question) :; return ;;
        --answer) :; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --configs --max-new-tokens --raw -t --threads --max-memory --html -f --force --file --lengths --depths --trials --seed --needle --question --answer -q --quiet --json"
        return
      fi
      :
      ;;
    "eval jsonl")
      case $prev in
        -m | --model) files -f; return ;;
        --configs) :; return ;;
        --max-new-tokens) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
        --file) files -f; return ;;
        --limit) :; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --configs --max-new-tokens --raw -t --threads --max-memory --html -f --force --file --limit -q --quiet --json"
        return
      fi
      :
      ;;
    "eval memory")
      case $prev in
        -m | --model) files -f; return ;;
        --configs) :; return ;;
        --max-new-tokens) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --html) files -f; return ;;
        --trials) :; return ;;
        --tokens) :; return ;;
        --turns) :; return ;;
        --seed) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model --configs --max-new-tokens --raw -t --threads --max-memory --html -f --force --trials --tokens --turns --seed --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "eval cache")
      case $prev in
        --tokens) :; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        -m | --model) files -f; return ;;
        --queries) :; return ;;
        --html) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --tokens -t --threads --max-memory -m --model --queries --html -f --force --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "store put")
      case $prev in
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --name) files -f; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --salt-file --name --no-name --replace -t --threads --max-memory --key-file --require-encrypted -q --quiet --json"
        return
      fi
      files -f
      ;;
    "store get")
      case $prev in
        -m | --model) files -f; return ;;
        -p | --prompt) :; return ;;
        --file) :; return ;;
        --ids) :; return ;;
        --store) :; return ;;
        --salt-file) files -f; return ;;
        -o | --output) files -f; return ;;
        -t | --threads) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model -p --prompt --file --ids --no-special --store --salt-file -o --output -f --force -t --threads --max-memory --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store find")
      case $prev in
        -m | --model) files -f; return ;;
        -p | --prompt) :; return ;;
        --file) :; return ;;
        --ids) :; return ;;
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help -m --model -p --prompt --file --ids --no-special --store --salt-file --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store ls")
      case $prev in
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --model-name) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --salt-file --model-name --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store info")
      case $prev in
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --salt-file --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store rm")
      case $prev in
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --salt-file --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store gc")
      case $prev in
        --store) :; return ;;
        --max-bytes) :; return ;;
        --max-age) :; return ;;
        --grace) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --max-bytes --max-age --grace --drop-prompts --dry-run --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store stats")
      case $prev in
        --store) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store check")
      case $prev in
        --store) :; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --read-data --repair --max-memory --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store forget")
      case $prev in
        --store) :; return ;;
        --salt-file) files -f; return ;;
        --api-key-file) files -f; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --store --salt-file --api-key-file --dry-run --key-file -q --quiet --json"
        return
      fi
      :
      ;;
    "store copy")
      case $prev in
        --salt-file) files -f; return ;;
        --max-memory) :; return ;;
        --key-file) files -f; return ;;
      esac
      if [[ $cur == -* ]]; then
        words "--help --salt-file --replace --max-memory --key-file -q --quiet --json"
        return
      fi
      files -f
      ;;
  esac
}

complete -o filenames -F _tqcache tqcache
