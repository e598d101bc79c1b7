"""AES-256-GCM and HKDF-SHA256, as docs/reference/format.md §15 uses them.

The module cryptography is used where it is there. Without it, tables of Python do the same, a
thousand times more slowly.
"""

import hashlib
import hmac

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    AESGCM = None


def hkdf(secret, salt, label):
    """The first 32 bytes."""
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, label + b"\1", hashlib.sha256).digest()


def times_x(byte):
    return (byte << 1 ^ 0x11B) if byte & 0x80 else byte << 1


def make_box():
    """The S-box of AES: inverses in its field, and a linear map of their bits."""
    power, log, x = [0] * 255, [0] * 256, 1
    for i in range(255):
        power[i], log[x] = x, i
        x ^= times_x(x)  # times 3
    box = []
    for byte in range(256):
        inverse = power[(255 - log[byte]) % 255] if byte else 0
        turned = inverse
        for _ in range(4):
            inverse = (inverse << 1 | inverse >> 7) & 255
            turned ^= inverse
        box.append(turned ^ 0x63)
    return box


BOX = make_box()


def round_keys(key):
    """15 lists of 16 bytes."""
    words, constant = [list(key[i : i + 4]) for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = list(words[-1])
        if i % 8 == 0:
            word = [BOX[each] for each in word[1:] + word[:1]]
            word[0] ^= constant
            constant = times_x(constant)
        elif i % 8 == 4:
            word = [BOX[each] for each in word]
        words.append([a ^ b for a, b in zip(words[-8], word)])
    return [sum(words[i : i + 4], []) for i in range(0, 60, 4)]


def encrypt_block(keys, block):
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number in range(1, 15):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < 14:
            mixed = []
            for i in range(0, 16, 4):
                column = state[i : i + 4]
                every = column[0] ^ column[1] ^ column[2] ^ column[3]
                mixed += [column[j] ^ every ^ times_x(column[j] ^ column[(j + 1) % 4]) for j in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[number])]
    return bytes(state)


def times(x, y):
    """In the field of GHASH, whose first bit is the highest here."""
    product = 0
    for i in range(127, -1, -1):
        if x >> i & 1:
            product ^= y
        y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    return product


def own_unseal(key, nonce, associated, sealed, tag):
    keys = round_keys(key)
    factor, digest = int.from_bytes(encrypt_block(keys, bytes(16)), "big"), 0
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
    for data in (associated, sealed, lengths):
        for i in range(0, len(data), 16):
            digest = times(digest ^ int.from_bytes(data[i : i + 16].ljust(16, b"\0"), "big"), factor)
    mask = encrypt_block(keys, nonce + (1).to_bytes(4, "big"))
    if bytes(a ^ b for a, b in zip(digest.to_bytes(16, "big"), mask)) != tag:
        return None
    plain = b""
    for i in range(0, len(sealed), 16):
        mask = encrypt_block(keys, nonce + (2 + i // 16).to_bytes(4, "big"))
        plain += bytes(a ^ b for a, b in zip(sealed[i : i + 16], mask))
    return plain


def unseal(key, nonce, associated, sealed, tag):
    """The plaintext, or None if the tag is another."""
    if AESGCM is None:
        return own_unseal(key, nonce, associated, sealed, tag)
    try:
        return AESGCM(key).decrypt(nonce, bytes(sealed) + tag, associated)
    except InvalidTag:
        return None
