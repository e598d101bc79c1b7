"""A model whose heads are split over processes saves its cache and reads those of other numbers of
processes. Run by torchrun, on GPUs where each process has one, otherwise on the CPU:

    torchrun --nproc-per-node 2 python/tests/tensor_parallel.py FOLDER write 2
    torchrun --nproc-per-node 4 python/tests/tensor_parallel.py FOLDER read 2

`write` makes a model of 4 kv heads in FOLDER and saves what each process has of a prompt's cache,
packed and dense. `read` goes on from the cache that another number of processes wrote (1: the file
of the whole cache) and compares the next logits with those of a prompt that was read afresh.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

import tqcache.transformers as tq
from tqcache import Identity
from tqcache.packed_cache import rope_of

N_TOKENS, N_MORE = 700, 5


def ids():
    return torch.randint(0, 512, (1, N_TOKENS + N_MORE),
                         generator=torch.Generator().manual_seed(1))


def make_model(folder):
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=512, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, head_dim=128, max_position_embeddings=2048)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "model")


@torch.no_grad()
def main():
    folder, what = Path(sys.argv[1]), sys.argv[2]
    on_gpu = torch.cuda.is_available() and \
        torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = (dist.get_rank(), dist.get_world_size())
    device = torch.device("cuda", rank[0]) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if what == "write" and rank[0] == 0:
        make_model(folder)
    dist.barrier()
    split = {"tp_plan": "auto"} if rank[1] > 1 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.bfloat16, **split).eval()
    if not split:
        model.to(device)
    prompt = ids().to(device)

    def read(tokens, cache):
        return model(tokens, past_key_values=cache, use_cache=True).logits.float()

    if what == "write":
        for name, cache, config in (("packed", tq.TqcacheCache(bits=4, config=model.config), None),
                                    ("dense", transformers.DynamicCache(), None)):
            read(prompt[:, :N_TOKENS], cache)
            n_heads = cache.layers[0].keys.shape[1]
            assert n_heads * rank[1] == 4, f"{n_heads} heads in each of {rank[1]} processes"
            where = {} if rank[1] == 1 else {"rank": rank}
            # There is no tokenizer in the folder, so the identity is given.
            tq.save(cache, folder / f"{name}{sys.argv[3]}.tqkv", input_ids=prompt[:, :N_TOKENS],
                    identity=Identity("llama", rope=rope_of(model.config),
                                      source_format="transformers"), config=config, **where)
    else:
        right = read(prompt, transformers.DynamicCache())[:, -N_MORE:]
        for name, limit in (("dense", 2e-2), ("packed", 0.3)):
            path = folder / f"{name}{sys.argv[3]}.tqkv"
            cache = tq.load(path, model, device=device, rank=rank, check=False)
            logits = read(prompt[:, N_TOKENS:], cache)
            error = ((logits - right).norm() / right.norm()).item()
            assert error < limit, f"{name}: {error}"
            if rank[0] == 0:
                print(f"{rank[1]} processes on {device.type}, {name} of {sys.argv[3]}: logits "
                      f"differ by {error:.5f}")
    dist.barrier()
    dist.destroy_process_group()


main()
