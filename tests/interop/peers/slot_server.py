"""llama-server that answers some requests and ends: the one inside PyPI's xllamacpp.

usage: slot_server.py MODEL SLOT_FOLDER N_SLOTS < REQUESTS

REQUESTS is a JSON list of [path, body]. The last line of the output is the list of the answers.
"""

import json
import os
import sys
import urllib.error
import urllib.request

import xllamacpp


def main(model, folder, n_slots):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 2048, int(n_slots), 0
    params.kv_unified = False
    params.slot_save_path = folder + "/"
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    answers = []
    for path, body in json.load(sys.stdin):
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                answers.append(json.load(answer))
        except urllib.error.HTTPError as error:
            answers.append({"status": error.code})
    print("\n" + json.dumps(answers), flush=True)
    os._exit(0)  # the server's threads do not end


if __name__ == "__main__":
    main(*sys.argv[1:])
