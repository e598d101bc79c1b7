"""The serde of tqcache.lmcache through LMCache's own wrapper, factory and L1 manager, above its
adapter for file systems and above ours."""

import select
from pathlib import Path

import engines
import numpy as np
import pytest

pytestmark = pytest.mark.interop

HEAD_DIM = 32
SPLIT = (2, 2, 256, 2 * HEAD_DIM)       # keys and values, layers, tokens, heads * head_dim
FUSED_4D = (1, 2, 256, 2 * 2 * HEAD_DIM)  # vLLM since 0.26: each head's key, then its value
FUSED_3D = (2, 256, 2 * 2 * HEAD_DIM)


@pytest.fixture(autouse=True)
def lmcache():
    engines.need("lmcache")


def numbers(shape, dtype):
    """Normal numbers with a few loud channels, as keys have."""
    import torch

    made = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    made[..., 5] *= 8
    return made.to(dtype).contiguous()


def as_object(tensor):
    import torch

    return engines.memory_object(tensor.reshape(-1).view(torch.uint8).numpy(), tensor.shape,
                                 tensor.dtype)


def as_buffer(n_bytes):
    import torch

    return engines.memory_object(np.zeros(n_bytes, np.uint8), (n_bytes,), torch.uint8)


def object_key(name="a", **others):
    from lmcache.v1.distributed.api import ObjectKey

    fields = {"chunk_hash": engines.key_hash(name), "model_name": "tiny", "kv_rank": 0x01000100}
    return ObjectKey(**{**fields, **others})


def through(tensor, serializer):
    """Serializes into a buffer of the estimated size; returns it and the size that is used."""
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    layout = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    buffer = as_buffer(serializer.estimate_serialized_size(layout))
    return buffer, serializer.serialize(as_object(tensor), buffer, object_key())


def relative_error(a, b):
    return float((a.float() - b.float()).pow(2).sum() / a.float().pow(2).sum())


@pytest.mark.parametrize("shape", [SPLIT, FUSED_4D, FUSED_3D, (1, 2, 256, 576), (7, 11)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "uint8"])
def test_lossless(shape, dtype):
    import torch
    from tqcache.lmcache import TqcacheDeserializer, TqcacheSerializer

    tensor = numbers(shape, torch.float32).to(getattr(torch, dtype))
    buffer, n = through(tensor, TqcacheSerializer())
    again = torch.zeros_like(tensor)
    TqcacheDeserializer().deserialize(buffer, as_object(again), object_key())
    assert torch.equal(tensor, again)
    if dtype in ("float16", "bfloat16") and tensor.numel() > 10000:
        assert n < tensor.numel() * 2


def need_device(device):
    from tqcache import cuda

    if device != "cpu" and not cuda.available():
        pytest.skip("no GPU, or no kernels for it")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [SPLIT, FUSED_4D, FUSED_3D])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_turbo_finds_keys_and_values(shape, dtype, device):
    import torch
    from tqcache.lmcache import TqcacheDeserializer, TqcacheSerializer

    need_device(device)
    tensor = numbers(shape, getattr(torch, dtype))
    buffer, n = through(tensor, TqcacheSerializer(HEAD_DIM, "mse:4", "mse:4", device=device))
    assert n < 0.4 * tensor.numel() * tensor.element_size()
    decoded = []
    for reader in {"cpu", device}:
        again = torch.zeros_like(tensor)
        TqcacheDeserializer(reader).deserialize(buffer, as_object(again), object_key())
        assert 1e-6 < relative_error(tensor, again) < 0.02
        decoded.append(again)
    assert all(torch.equal(decoded[0], each) for each in decoded)


def test_the_two_layouts_hold_the_same_vectors():
    import torch
    from tqcache.lmcache import _parts

    split = numbers(SPLIT, torch.float16)
    fused = split.view(2, 2, 256, 2, HEAD_DIM).permute(1, 2, 3, 0, 4).reshape(FUSED_4D)
    for (kind, a), (kind_too, b) in zip(_parts(split, HEAD_DIM), _parts(fused, HEAD_DIM),
                                        strict=True):
        assert kind == kind_too
        assert torch.equal(a, b)


def test_objects_of_earlier_versions_are_read():
    """The form "turbo": an encoded block for the keys of each layer, and then for the values."""
    import json
    import zlib

    import torch
    from tqcache import codec
    from tqcache.lmcache import _HEAD, _MAGIC, TqcacheDeserializer, _bits, _key_fields, _parts

    tensor = numbers(SPLIT, torch.bfloat16)
    blocks = [codec.encode(_bits(part), "mse:4", kind=kind, bf16=True)
              for kind, part in _parts(tensor, HEAD_DIM)]
    text = json.dumps({
        "key": _key_fields(object_key()), "layout": [[list(SPLIT), "torch.bfloat16"]],
        "groups": [{"form": "turbo", "head_dim": HEAD_DIM,
                    "sizes": [len(block) for block in blocks]}]}, sort_keys=True).encode()
    n = _HEAD.size + len(text) + sum(map(len, blocks))
    data = b"".join([_HEAD.pack(_MAGIC, zlib.crc32(text), len(text), n), text, *blocks])
    buffer, again = as_buffer(n), torch.zeros_like(tensor)
    np.frombuffer(buffer.byte_array, np.uint8)[:] = np.frombuffer(data, np.uint8)
    TqcacheDeserializer().deserialize(buffer, as_object(again), object_key())
    assert 1e-6 < relative_error(tensor, again) < 0.02


def test_damage_and_other_objects_raise():
    import torch
    from tqcache.lmcache import TqcacheDeserializer, TqcacheSerializer

    for head_dim in (0, HEAD_DIM):
        tensor = numbers(SPLIT, torch.bfloat16)
        buffer, n = through(tensor, TqcacheSerializer(head_dim))
        whole = np.frombuffer(buffer.byte_array, np.uint8)[:n].copy()
        de = TqcacheDeserializer()

        def refused(data, dst, key):
            before = dst.clone()
            source = as_buffer(len(data))
            np.frombuffer(source.byte_array, np.uint8)[:] = data
            with pytest.raises(Exception):
                de.deserialize(source, as_object(dst), key)
            assert torch.equal(before, dst), "something was written"

        for at in sorted({*range(0, n, max(1, n // 60)), *range(24), n - 1}):
            data = whole.copy()
            data[at] ^= 1 << at % 8
            refused(data, torch.zeros_like(tensor), object_key())
        refused(whole[:-1], torch.zeros_like(tensor), object_key())
        for key in (object_key("b"), object_key(model_name="other"), object_key(kv_rank=0x02000200),
                    object_key(cache_salt="s")):
            refused(whole, torch.zeros_like(tensor), key)
        refused(whole, torch.zeros(SPLIT, dtype=torch.float16), object_key())
        refused(whole, torch.zeros(FUSED_4D, dtype=torch.bfloat16), object_key())


@pytest.mark.parametrize("below", ["fs", "tqcache"])
@pytest.mark.parametrize("serde", [{"type": "tqcache"},
                                   {"type": "tqcache-turbo", "head_dim": HEAD_DIM},
                                   {"type": "tqcache-turbo", "head_dim": HEAD_DIM,
                                    "device": "cuda"}])
def test_below_lmcaches_wrapper(below, serde, tmp_path):
    import torch
    need_device(serde.get("device", "cpu"))
    import tqcache.lmcache  # noqa: F401: registers the serdes, as the L2 adapter does
    from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
    from lmcache.v1.distributed.l1_manager import L1Manager
    from lmcache.v1.distributed.l2_adapters import config as l2_config
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
    from lmcache.v1.distributed.serde import create_serde_processor

    spec = {"fs": {"type": "fs", "base_path": str(tmp_path / "fs")},
            "tqcache": engines.Lmcache.spec(f"dir:{tmp_path}/store", "")}[below]
    if below == "fs":  # which reads objects of the estimated size only
        serde = {**serde, "pad": True}
    spec["serde"] = serde
    parsed = l2_config.get_l2_adapter_config_class(spec["type"]).from_dict(spec)
    serde_config = l2_config.L2AdapterConfigBase._parse_serde_config(spec)
    l1 = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False,
                                                         shm_name="")))

    def adapter():
        made = SerdeL2AdapterWrapper(inner=create_l2_adapter(parsed, None),
                                     serde=create_serde_processor(serde_config), l1_manager=l1)
        made.set_backend_identity(spec["type"])
        return made

    def wait(fd, poll):
        while (result := poll()) is None:
            select.select([fd], [], [], 0.2)
        return result

    def load(shape, dtype):
        made = adapter()
        again = torch.zeros(shape, dtype=dtype)
        into = [as_object(again)]
        task = made.submit_load_task([object_key()], into)
        loaded = wait(made.get_load_event_fd(), lambda: made.query_load_result(task))
        made.close()
        return again if loaded.test(0) else None

    tensor = numbers(SPLIT, torch.bfloat16)
    made = adapter()
    kept = [as_object(tensor)]
    task = made.submit_store_task([object_key()], kept)
    assert wait(made.get_store_event_fd(),
                lambda: made.pop_completed_store_tasks().get(task)).is_successful()
    made.close()

    again = load(SPLIT, torch.bfloat16)
    assert again is not None
    assert relative_error(tensor, again) < (0.02 if "head_dim" in serde else 1e-12)
    assert load(FUSED_4D, torch.bfloat16) is None
    path, = [path for path in Path(tmp_path).rglob("*") if path.is_file()
             and (path.name.endswith(".data") or "blobs" in path.parts)]
    n_bytes = tensor.numel() * tensor.element_size()
    # Of so small heads a padded object is mostly room to spare.
    assert path.stat().st_size < (1.1 if "pad" in serde else 0.4 if "head_dim" in serde
                                  else 0.9) * n_bytes
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 16
    path.write_bytes(data)
    assert load(SPLIT, torch.bfloat16) is None
    l1.close()
