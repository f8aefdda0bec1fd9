"""Makes a picture with onnxruntime and the schedulers of diffusion_reference.py, and compares `neap imagine`'s with it.

    imagine_reference.py FOLDER PICTURE.png --prompt TEXT [--negative TEXT] [--scheduler NAME] [--steps N]
                         [--guidance X] [--seed N] [--image PHOTO.png --strength X]

Both are of the same seed. Fails where a value of a pixel is more than 2 of 255 off, or all are more than 0.1 off on average, rounding to whole values apart: results of kernels
differ in rounding, which the steps make larger. The photo has the picture's size, and no alpha.
"""

import argparse
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

from diffusion_reference import KINDS, Noise, Settings

SCALING = 0.18215
PLACES = 77
MOST, MEAN = 2, 0.1


def read_png(path):
    data = Path(path).read_bytes()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour) == (8, 2), "8 bits of red, green and blue are wanted"
        if kind == b"IDAT":
            packed += body
        at += length + 12
    raw, row = zlib.decompress(packed), 3 * width
    above, rows = np.zeros(row, int), []
    for y in range(height):
        kind, line = raw[y * (row + 1)], raw[y * (row + 1) + 1 : (y + 1) * (row + 1)]
        out = np.zeros(row, int)
        for x in range(row):
            a = out[x - 3] if x >= 3 else 0
            b = above[x]
            c = above[x - 3] if x >= 3 else 0
            p = a + b - c
            nearest = min((abs(p - v), i, v) for i, v in enumerate((a, b, c)))[2]
            out[x] = line[x] + (0, a, b, (a + b) // 2, nearest)[kind] & 255
        rows.append(out)
        above = out
    return np.array(rows).reshape(height, width, 3)


def tokens(folder, text):
    """Of plain words between blanks."""
    vocabulary = json.loads((folder / "tokenizer/vocab.json").read_text())
    lines = (folder / "tokenizer/merges.txt").read_text().splitlines()[1:]
    ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
    ids = [vocabulary["<|startoftext|>"]]
    for word in text.lower().split():
        assert word.isalpha() and word.isascii(), "plain words are wanted"
        pieces = list(word[:-1]) + [word[-1] + "</w>"]
        while True:
            pairs = [(ranks[p], i) for i, p in enumerate(zip(pieces, pieces[1:])) if p in ranks]
            if not pairs:
                break
            _, i = min(pairs)
            pieces[i : i + 2] = ["".join(pieces[i : i + 2])]
        ids += [vocabulary[piece] for piece in pieces]
    end = vocabulary["<|endoftext|>"]
    ids = ids[: PLACES - 1] + [end]
    return np.array([ids + [end] * (PLACES - len(ids))], np.int64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--negative", default="")
    parser.add_argument("--scheduler", default="pndm")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=7.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image")
    parser.add_argument("--strength", type=float, default=0.8)
    args = parser.parse_args()

    def run(network):
        session = onnxruntime.InferenceSession(args.folder / network / "model.onnx")
        return lambda **given: session.run(None, given)[0]

    picture = read_png(args.picture)
    shape = (1, 4, picture.shape[0] // 8, picture.shape[1] // 8)
    encode = run("text_encoder")
    texts = [encode(input_ids=tokens(args.folder, text)) for text in (args.negative, args.prompt)]
    settings = json.loads((args.folder / "scheduler/scheduler_config.json").read_text())
    sampler = KINDS[args.scheduler](Settings(**settings), args.steps)
    noise = Noise(args.seed)
    draw = lambda: noise.draw(int(np.prod(shape))).reshape(shape).astype(np.float64)
    first = 0
    if args.image:
        photo = (read_png(args.image) / 127.5 - 1).transpose(2, 0, 1)[None].astype(np.float32)
        found = run("vae_encoder")(sample=photo).astype(np.float64)
        latents = (found[:, :4] + np.exp(found[:, 4:].clip(-30, 20) / 2) * draw()) * SCALING
        first = args.steps - int(args.steps * args.strength)
        latents = sampler.noised(first, latents, draw())
    else:
        latents = draw() * sampler.scale
    unet = run("unet")
    for index in range(first, len(sampler.timesteps)):
        seen = sampler.input(index, latents).astype(np.float32)
        step = np.array([int(sampler.timesteps[index])], np.int64)
        ask = lambda text: unet(sample=seen, timestep=step, encoder_hidden_states=text)
        if args.guidance > 1:
            without, output = (ask(text).astype(np.float64) for text in texts)
            output = without + args.guidance * (output - without)
        else:
            output = ask(texts[1]).astype(np.float64)
        latents = sampler.step(index, output, latents, draw)
    found = run("vae_decoder")(latent_sample=(latents / SCALING).astype(np.float32))
    wanted = (found[0].transpose(1, 2, 0) / 2 + 0.5).clip(0, 1) * 255
    apart = np.abs(wanted - picture)
    spread = picture.std()
    print(f"most {apart.max():.2f}, mean {apart.mean():.3f}, spread {spread:.1f}")
    # What is all one colour compares with anything.
    return int(apart.max() > MOST + 0.5 or apart.mean() > MEAN + 0.5 or spread < 10)


if __name__ == "__main__":
    sys.exit(main())
