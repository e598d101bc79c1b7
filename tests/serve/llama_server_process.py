"""llama-server as a process: the one inside PyPI's xllamacpp, with all of its routes.

usage: llama_server_process.py SETTINGS

SETTINGS is a JSON object: model, port and slots (--slot-save-path), and fields of CommonParams.
What is absent is the default of the program llama-server: n_parallel is "auto" (four slots with one
unified cache), the RAM cache has 8192 MiB, idle slots go there, the context is the model's. Only
the number of threads is not: two servers share the two cores of a CI machine. Router mode cannot be
tried, because xllamacpp refuses to start without a model.
"""

import json
import signal
import sys

import xllamacpp

# CommonParams has the defaults of all of llama.cpp's programs; these are llama-server's own.
SERVER_DEFAULTS = {"n_parallel": -1}


def main():
    settings = {"n_threads": 1, **SERVER_DEFAULTS, **json.loads(sys.argv[1])}
    params = xllamacpp.CommonParams()
    params.model.path = settings.pop("model")
    params.slot_save_path = settings.pop("slots").rstrip("/") + "/"
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.pop("n_threads")
    for name, value in settings.items():
        if name in ("cache_type_k", "cache_type_v"):
            value = getattr(xllamacpp.ggml_type, value)
        elif name == "lora":
            adapter = xllamacpp.CommonAdapterLoraInfo(value, 1.0)
            name, value = "lora_adapters", [adapter]
        if not hasattr(params, name):
            sys.exit(f"CommonParams has no field {name}")
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
