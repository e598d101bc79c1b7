#!/usr/bin/env bash
# Completes command lines with the generated completions.
#
# usage: completions.sh SOURCE_DIR
set -euo pipefail
cd "$1/completions"
n_failed=0

# complete_words WORD...: what bash offers for the last word, sorted.
complete_words() {
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _tqcache
  printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort | tr '\n' ' '
}

# expect WANTED WORD...: the completions of the words are exactly these.
expect() {
  local wanted=$1 got
  shift
  got=$(complete_words "$@")
  if [[ "${got% }" != "$wanted" ]]; then
    echo "completing '$*': '${got% }', expected '$wanted'" >&2
    n_failed=$((n_failed + 1))
  fi
}

source ./tqcache.bash
expect "compact completion convert" tqcache co
expect "bash" tqcache completion b
expect "store" tqcache st
expect "help" tqcache he
expect "compact convert" tqcache help co
expect "--max-windows" tqcache advise --max-w
expect "put" tqcache store p
expect "--quiet" tqcache convert --qu
expect "zstd" tqcache convert --compress z
expect "zstd" tqcache convert --compress = z
expect "none" tqcache prefill --compress n
expect "tqcache.bash tqcache.fish" tqcache convert tqcache.
expect "tqcache.bash tqcache.fish" tqcache generate -m tqcache.
expect "" tqcache generate --prompt tqcache.
expect "--read-data --repair" tqcache store check --re
expect "" tqcache store ls tqcache.
expect "--help --version" tqcache --

if command -v zsh > /dev/null; then
  zsh -n ./_tqcache || n_failed=$((n_failed + 1))
fi
if command -v fish > /dev/null; then
  fish --no-execute ./tqcache.fish || n_failed=$((n_failed + 1))
  got=$(fish --no-config -c "source ./tqcache.fish; complete -C 'tqcache convert --compress '" | cut -f1 | tr '\n' ' ')
  [[ $got == *"none planes zstd"* ]] || { echo "fish: '$got'" >&2; n_failed=$((n_failed + 1)); }
fi
if command -v groff > /dev/null; then
  for page in ../man/*.1; do
    warnings=$(groff -man -ww -z -Tutf8 "$page" 2>&1) || true
    [[ -z $warnings ]] || { echo "$page: $warnings" >&2; n_failed=$((n_failed + 1)); }
  done
fi
exit $((n_failed > 0))
