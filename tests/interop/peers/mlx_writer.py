"""Saves prompt caches with the mlx-lm that Python finds, for a test that runs another version of it.

usage: mlx_writer.py MODEL_FOLDER OUTPUT TOKEN_ID...
"""

import sys

import mlx_peer


def main():
    folder, output, *ids = sys.argv[1:]
    model = mlx_peer.load(folder)
    mlx_peer.save(output, mlx_peer.prefill(model, [int(word) for word in ids]))


if __name__ == "__main__":
    main()
