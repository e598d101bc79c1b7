"""llama.cpp's state file to tqcache, to mlx-lm's, to tqcache, to llama.cpp's: the keys and values at
the end are those of the beginning, byte by byte. Where mlx-lm is there, it reads the file in the middle.
"""

import support

import llama_file

DENSE = ("--bits", 16)


class Chain(support.PeerTest):
    def test_llama_mlx_llama(self):
        gguf = support.gguf()
        start = support.options().source / "tests/data/llama.cpp/alice_f16.ggsn"
        _, tokens, keys, values = llama_file.read(start)
        first = self.convert(start, "first.tqkv", *DENSE, "--model", gguf)
        n_cells = len(keys[0][2]) // keys[0][1]
        ids = self.ids_file(tokens[:n_cells])
        for version in ("0.31", "0.32"):
            mlx = self.convert(first, "middle.safetensors", "--to", "mlx-lm",
                               "--mlx-lm-version", version)
            self.look_in_the_middle(mlx, version, n_cells)
            again = self.convert(mlx, "again.tqkv", *DENSE, "--model", gguf, "--ids", ids)
            for target in ("llama-session", "llama-seq"):
                with self.subTest(version=version, target=target):
                    end = self.convert(again, "end.bin", "--to", target, "--model", gguf)
                    _, tokens_after, keys_after, values_after = llama_file.read(end)
                    self.assertEqual(tokens_after, tokens[:n_cells])
                    self.assertEqual(keys_after, keys)
                    self.assertEqual(values_after, values)

    def look_in_the_middle(self, path, version, n_tokens):
        try:
            import mlx_peer
        except ImportError:
            print("  mlx-lm is not there to read the file in the middle", flush=True)
            return
        if mlx_peer.VERSION != version:
            return
        cache = mlx_peer.load_cache(path)
        self.assertEqual({layer.offset for layer in cache}, {n_tokens})
        print(f"  {mlx_peer.versions()} reads the file in the middle", flush=True)


if __name__ == "__main__":
    support.main()
