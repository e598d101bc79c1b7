"""mlx_lm.server with a store of tqcache below its prompt caches, which survives a restart.

    python -m tqcache.mlx_server --store dir:prompts [--store-config turbo4] [--store-key FILE]
                                 ARGUMENTS OF mlx_lm.server

--store-config none keeps every bit. docs/guide/plugins.md.
"""

import argparse
import signal
import sys

from mlx_lm import server

from .mlx import TqcachePromptCache


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--store", required=True, help="URL of the store, as dir:prompts")
    parser.add_argument("--store-config", default="turbo4",
                        help="preset or configuration, or none")
    parser.add_argument("--store-key", help="file with the key that encrypts the store")
    if any(argument in ("-h", "--help") for argument in sys.argv[1:]):
        print(__doc__)
        print("Arguments of mlx_lm.server:\n")
        server.main()
        return
    ours, theirs = parser.parse_known_args()
    made: list[TqcachePromptCache] = []
    plain = server.ResponseGenerator

    def with_store(model_provider, prompt_cache):
        arguments = model_provider.cli_args
        cache = TqcachePromptCache(
            ours.store, model_provider, arguments.prompt_cache_size,
            config=None if ours.store_config == "none" else ours.store_config,
            key_file=ours.store_key)
        made.append(cache)
        return plain(model_provider, cache)

    server.ResponseGenerator = with_store
    sys.argv = [sys.argv[0], *theirs]
    # As Ctrl-C: what is not written yet is written first.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        server.main()
    finally:
        for cache in made:
            cache.close()


if __name__ == "__main__":
    main()
