"""llama-server as a process: the one inside PyPI's xllamacpp, with all of its routes."""

import json
import sys
import time

import xllamacpp


def main():
    settings = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.port = settings["port"]
    params.slot_save_path = settings["slots"].rstrip("/") + "/"
    params.n_ctx = settings["n_ctx"]
    params.n_parallel = settings["n_slots"]
    params.cache_ram_mib = settings.get("cache_ram_mib", 8192)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_slots = True
    params.warmup = False
    for name in ("cache_type_k", "cache_type_v"):
        if name in settings:
            setattr(params, name, getattr(xllamacpp.ggml_type, settings[name]))
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
