"""The kernels of tqcache for NVIDIA GPUs: a shared library that tqcache.cuda loads."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libtqcache_cuda.so")
