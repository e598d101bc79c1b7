"""Quantized weights of GGUF against the gguf package, which defines what they stand for."""

import os
import subprocess

import make_blocks
import support

gguf = support.need("gguf")


class Blocks(support.PeerTest):
    def test_every_type_is_widened_to_the_same_bits(self):
        for seed in range(2, 42):
            path = self.folder / "blocks.gguf"
            make_blocks.write(path, seed)
            done = subprocess.run(
                [support.options().tensors_test, "--gtest_filter=BlockTypes.WidenAsTheGgufPackageDoes"],
                env={**os.environ, "TQCACHE_BLOCKS": str(path)}, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"seed {seed}: {done.stdout}")
            self.assertIn("[  PASSED  ] 1 test.", done.stdout)


if __name__ == "__main__":
    print(f"gguf {__import__('importlib.metadata').metadata.version('gguf')}", flush=True)
    support.main()
