"""Images, sounds and videos among the tokens of a prompt, as a model's config and processor tell of
them, in any framework."""

import hashlib
import json

import numpy as np

from tqcache import MediaSpan, UsageError


def runs(config, tokens):
    """[kind, begin, end, placeholder] of each run of the config's image, video or audio tokens."""
    kinds = {}
    for kind, names in (("image", ("image_token_id", "image_token_index")),
                        ("video", ("video_token_id", "video_token_index")),
                        ("audio", ("audio_token_id", "audio_token_index"))):
        for name in names:
            if isinstance(getattr(config, name, None), int):
                kinds[getattr(config, name)] = kind
    found = []
    for i, token in enumerate(tokens):
        if found and found[-1][2:] == [i, token]:
            found[-1][2] = i + 1
        elif token in kinds:
            found.append([kinds[token], i, i + 1, token])
    return found


def _digest(values) -> str:
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(values, np.float32).tobytes()).hexdigest()


def _parts(inputs, as_array, kind, n):
    """The processor's output for each of `n` media of a kind, which their digests are made of; None
    if it does not tell them apart."""
    values, grid = {"image": ("pixel_values", "image_grid_thw"),
                    "video": ("pixel_values_videos", "video_grid_thw"),
                    "audio": ("input_features", None)}[kind]
    if inputs.get(values) is None:
        return None
    parts = values = as_array(inputs[values])
    if grid and inputs.get(grid) is not None:  # rows of all media one behind another
        sizes = as_array(inputs[grid]).astype(np.int64)
        parts = np.split(values, np.cumsum(sizes.prod(-1))[:-1])
        parts = [np.concatenate([part.ravel(), size.ravel()]) for part, size in zip(parts, sizes)]
    return parts if len(parts) == n else None


def spans(config, inputs, as_array, coordinates_of, ids=None) -> list[MediaSpan]:
    """What media_of() of tqcache.transformers and tqcache.mlx return.

    as_array: a numpy array of f32 of one of the framework's. coordinates_of: a function without
    arguments that returns time, row and column of each token, [3, n], or None.
    """
    tokens = as_array(inputs["input_ids"]).astype(np.int64).ravel().tolist()
    found = runs(config, tokens)
    if ids is None:
        ids = [None] * len(found)
        for kind in {run[0] for run in found}:
            numbers = [i for i, run in enumerate(found) if run[0] == kind]
            parts = _parts(inputs, as_array, kind, len(numbers))
            if parts is None:
                raise UsageError(f"{len(numbers)} runs of {kind} tokens, and inputs do not tell what "
                                 "each shows: name them, ids=[...]")
            for i, part in zip(numbers, parts):
                ids[i] = _digest(part)
    if len(ids) != len(found):
        raise UsageError(f"{len(ids)} ids of {len(found)} media")
    coordinates = coordinates_of() if found else None
    made = []
    for (kind, begin, end, token), name in zip(found, ids):
        span = MediaSpan(kind, begin, end - begin, name, placeholder=token)
        if coordinates is not None:
            span.coordinates = coordinates[:, begin:end]
            # That of the text behind it; at the end of the prompt, the one that it would have.
            span.next_position = int(coordinates[0, end] if end < len(tokens)
                                     else span.coordinates.max() + 1)
        made.append(span)
    return made


def as_json(media) -> str:
    """The list that importers read: docs/reference/interop.md, "Media"."""
    return json.dumps([
        {"kind": span.kind, "begin": span.begin, "n_tokens": span.n_tokens, "id": span.id,
         **({} if span.coordinates is None else
            {"coordinates": np.asarray(span.coordinates).ravel().tolist()}),
         "next_position": span.next_position, "placeholder": span.placeholder} for span in media])
