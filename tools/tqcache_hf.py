#!/usr/bin/env python3
"""Prompt caches of Hugging Face transformers, as safetensors files that tqcache reads and writes.

    import tqcache_hf
    tqcache_hf.save(outputs.cache, "prompt.safetensors", input_ids, model.config)
    cache = tqcache_hf.load("prompt.safetensors")     # a DynamicCache

    python3 tqcache_hf.py FILE        tells what is in a file
    python3 tqcache_hf.py FILE.pt OUT.safetensors
                                      converts what torch.save wrote: tuples of tensors alone, or,
                                      with --trust, whatever its pickle makes, which can be anything

The Python package tqcache does it (tqcache.hf_file, tqcache.transformers for paths that end in
.tqkv); this script gives it a command line. Needs the package, torch, safetensors and, for load()
and pickled caches, transformers (4.45 and later).
"""
import sys

try:
    from tqcache.hf_file import FORMAT, Unsupported, load, main, save, tokens
except ImportError as error:
    reason = f"needs the Python packages tqcache, torch and safetensors: {error}"
    if __name__ == "__main__":
        sys.exit(f"tqcache_hf.py: {reason}")
    raise ImportError(reason) from error

__all__ = ["FORMAT", "Unsupported", "load", "main", "save", "tokens"]

if __name__ == "__main__":
    main()
