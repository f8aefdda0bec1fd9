"""Makes a picture with onnxruntime and the schedulers of diffusion_reference.py, and compares `neap imagine`'s with it.

    imagine_reference.py FOLDER PICTURE.png --prompt TEXT [--negative TEXT] [--scheduler NAME] [--steps N]
                         [--guidance X] [--seed N] [--image PHOTO.png --strength X]

The folder has Stable Diffusion 1 or SDXL. Both pictures are of the same seed. Fails where a value of a pixel is more than 2 of 255 off, or all are more than 0.1 off on average, rounding to whole values apart: results of kernels
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


def settings_of(folder, name):
    return json.loads((folder / name).read_text())


def tokens(folder, text):
    """Of plain words between blanks."""
    vocabulary = settings_of(folder, "vocab.json")
    pad = settings_of(folder, "tokenizer_config.json")["pad_token"]
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
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
    return np.array([ids + [vocabulary[pad]] * (PLACES - len(ids))], np.int64)


def session(folder, network):
    """By name of inputs, to outputs by name."""
    found = onnxruntime.InferenceSession(folder / network / "model.onnx")
    names = [output.name for output in found.get_outputs()]
    return lambda **given: dict(zip(names, found.run(None, given)))


def texts(folder, prompts, height, width):
    """What the UNet is given for each prompt."""
    ids = lambda name: [tokens(folder / name, prompt) for prompt in prompts]
    if not (folder / "text_encoder_2").exists():
        encode = session(folder, "text_encoder")
        rows = [encode(input_ids=tokens)["last_hidden_state"] for tokens in ids("tokenizer")]
        return [{"encoder_hidden_states": row} for row in rows]
    rows = []
    for number in ("", "_2"):
        layers = settings_of(folder, f"text_encoder{number}/config.json")["num_hidden_layers"]
        encode = session(folder, f"text_encoder{number}")
        found = [encode(input_ids=tokens) for tokens in ids(f"tokenizer{number}")]
        rows.append([each[f"hidden_states.{layers - 1}"] for each in found])
    sizes = np.array([[height, width, 0, 0, height, width]], np.float32)
    all_of = []
    for prompt, first, second, last in zip(prompts, *rows, found):
        seen = {"encoder_hidden_states": np.concatenate([first, second], axis=-1), "text_embeds": last["text_embeds"]}
        zeros = settings_of(folder, "model_index.json").get("force_zeros_for_empty_prompt", True)
        if zeros and not prompt:
            seen = {name: np.zeros_like(value) for name, value in seen.items()}
        all_of.append({**seen, "time_ids": sizes})
    return all_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--negative", default="")
    parser.add_argument("--scheduler", default="pndm")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image")
    parser.add_argument("--strength", type=float, default=0.8)
    args = parser.parse_args()

    is_xl = (args.folder / "text_encoder_2").exists()
    guidance = args.guidance if args.guidance is not None else 5.0 if is_xl else 7.5
    scaling = settings_of(args.folder, "vae_decoder/config.json")["scaling_factor"]
    picture = read_png(args.picture)
    shape = (1, 4, picture.shape[0] // 8, picture.shape[1] // 8)
    both = texts(args.folder, [args.negative, args.prompt], *picture.shape[:2])
    settings = settings_of(args.folder, "scheduler/scheduler_config.json")
    sampler = KINDS[args.scheduler](Settings(**settings), args.steps)
    noise = Noise(args.seed)
    draw = lambda: noise.draw(int(np.prod(shape))).reshape(shape).astype(np.float64)
    first = 0
    if args.image:
        photo = (read_png(args.image) / 127.5 - 1).transpose(2, 0, 1)[None].astype(np.float32)
        found = session(args.folder, "vae_encoder")(sample=photo)["latent_parameters"].astype(np.float64)
        latents = (found[:, :4] + np.exp(found[:, 4:].clip(-30, 20) / 2) * draw()) * scaling
        first = args.steps - int(args.steps * args.strength)
        latents = sampler.noised(first, latents, draw())
    else:
        latents = draw() * sampler.scale
    unet = session(args.folder, "unet")
    for index in range(first, len(sampler.timesteps)):
        seen = sampler.input(index, latents).astype(np.float32)
        step = np.array([int(sampler.timesteps[index])], np.int64)
        ask = lambda text: unet(sample=seen, timestep=step, **text)["out_sample"].astype(np.float64)
        if guidance > 1:
            without, output = (ask(text) for text in both)
            output = without + guidance * (output - without)
        else:
            output = ask(both[1])
        latents = sampler.step(index, output, latents, draw)
    decode = session(args.folder, "vae_decoder")
    found = decode(latent_sample=(latents / scaling).astype(np.float32))["sample"]
    wanted = (found[0].transpose(1, 2, 0) / 2 + 0.5).clip(0, 1) * 255
    apart = np.abs(wanted - picture)
    spread = picture.std()
    print(f"most {apart.max():.2f}, mean {apart.mean():.3f}, spread {spread:.1f}")
    # What is all one colour compares with anything.
    return int(apart.max() > MOST + 0.5 or apart.mean() > MEAN + 0.5 or spread < 10)


if __name__ == "__main__":
    sys.exit(main())
