"""Schedulers of diffusion models as the papers and `diffusers` define them, in double precision: what neap-diffusion is compared with.

    diffusion_reference.py          prints the table of crates/neap-diffusion/tests/steps.rs

Written from the formulae one by one, where the Rust code makes sums of two tensors of them all.
"""

import math

import numpy as np


class Settings:
    def __init__(self, **given):
        self.trained = given.get("num_train_timesteps", 1000)
        self.start = given.get("beta_start", 0.0001)
        self.end = given.get("beta_end", 0.02)
        self.schedule = given.get("beta_schedule", "linear")
        self.offset = given.get("steps_offset", 0)
        self.spacing = given.get("timestep_spacing")
        self.prediction = given.get("prediction_type", "epsilon")
        self.to_one = given.get("set_alpha_to_one")
        self.clips = given.get("clip_sample")
        self.original = given.get("original_inference_steps", 50)

    def alphas(self):
        n = self.trained
        if self.schedule == "linear":
            betas = np.linspace(self.start, self.end, n)
        else:
            betas = np.linspace(self.start**0.5, self.end**0.5, n) ** 2
        return np.cumprod(1 - betas)

    def spaced(self, usual, steps, whole=True):
        spacing, n = self.spacing or usual, self.trained
        if spacing == "linspace":
            t = np.linspace(0, n - 1, steps)[::-1]
            return t.round() if whole else t
        if spacing == "leading":
            return (np.arange(0, steps) * (n // steps)).round()[::-1] + self.offset
        return np.round(np.arange(n, 0, -n / steps)) - 1

    def original_and_noise(self, output, sample, alpha):
        """Of latents whose squares of parts add up to one."""
        a, b = math.sqrt(alpha), math.sqrt(1 - alpha)
        if self.prediction == "epsilon":
            return (sample - b * output) / a, output
        return a * sample - b * output, a * output + b * sample


class Ddim:
    scale = 1.0

    def __init__(self, settings, steps):
        self.s, self.steps, self.alphas = settings, steps, settings.alphas()
        self.timesteps = settings.spaced("leading", steps)

    def input(self, index, sample):
        return sample

    def step(self, index, output, sample, draw):
        t = int(self.timesteps[index])
        before = t - self.s.trained // self.steps
        last = 1.0 if self.s.to_one in (None, True) else self.alphas[0]
        a_before = self.alphas[before] if before >= 0 else last
        original, noise = self.s.original_and_noise(output, sample, self.alphas[t])
        if self.s.clips in (None, True):
            original = np.clip(original, -1, 1)
        return math.sqrt(a_before) * original + math.sqrt(1 - a_before) * noise

    def noised(self, index, original, noise):
        a = self.alphas[int(self.timesteps[index])]
        return math.sqrt(a) * original + math.sqrt(1 - a) * noise


class Euler:
    ancestral = False

    def __init__(self, settings, steps):
        self.s = settings
        self.timesteps = settings.spaced("linspace", steps, whole=False)
        alphas = settings.alphas()
        sigmas = np.sqrt((1 - alphas) / alphas)
        at = np.interp(self.timesteps, np.arange(len(sigmas)), sigmas)
        self.sigmas = np.append(at, 0.0)
        most = self.sigmas[0]
        leading = settings.spacing == "leading"
        self.scale = math.sqrt(most * most + 1) if leading else most

    def input(self, index, sample):
        return sample / math.sqrt(self.sigmas[index] ** 2 + 1)

    def step(self, index, output, sample, draw):
        sigma, to = self.sigmas[index], self.sigmas[index + 1]
        if self.s.prediction == "epsilon":
            original = sample - sigma * output
        else:
            original = output * (-sigma / math.sqrt(sigma**2 + 1)) + sample / (sigma**2 + 1)
        slope = (sample - original) / sigma
        if not self.ancestral:
            return sample + slope * (to - sigma)
        up = math.sqrt(to**2 * (sigma**2 - to**2) / sigma**2)
        down = math.sqrt(to**2 - up**2)
        return sample + slope * (down - sigma) + draw() * up

    def noised(self, index, original, noise):
        return original + self.sigmas[index] * noise


class EulerAncestral(Euler):
    ancestral = True


class Solver:
    """DPM-Solver++ 2M, the midpoint form."""

    scale = 1.0

    def __init__(self, settings, steps):
        self.s, n = settings, settings.trained
        spacing = settings.spacing or "linspace"
        if spacing == "linspace":
            t = np.linspace(0, n - 1, steps + 1).round()[::-1][:-1]
        elif spacing == "leading":
            t = (np.arange(0, steps + 1) * (n // (steps + 1))).round()[::-1][:-1] + settings.offset
        else:
            t = np.round(np.arange(n, 0, -n / steps)) - 1
        self.timesteps = t
        alphas = settings.alphas()
        sigmas = np.sqrt((1 - alphas) / alphas)
        self.sigmas = np.append(sigmas[t.astype(int)], 0.0)
        self.before = None

    def input(self, index, sample):
        return sample

    def step(self, index, output, sample, draw):
        def parts(sigma):
            alpha = 1 / math.sqrt(sigma**2 + 1)
            return alpha, sigma * alpha

        (a0, s0), (a1, s1) = parts(self.sigmas[index]), parts(self.sigmas[index + 1])
        original, _ = self.s.original_and_noise(output, sample, a0 * a0)
        before, self.before = self.before, original
        if s1 == 0:
            return original
        lam = lambda a, s: math.log(a) - math.log(s)
        h = lam(a1, s1) - lam(a0, s0)
        found = (s1 / s0) * sample - a1 * (math.exp(-h) - 1) * original
        if before is None:
            return found
        r0 = (lam(a0, s0) - lam(*parts(self.sigmas[index - 1]))) / h
        difference = (original - before) / r0
        return found - 0.5 * a1 * (math.exp(-h) - 1) * difference

    noised = Ddim.noised

    @property
    def alphas(self):
        return self.s.alphas()


class Lcm:
    scale = 1.0

    def __init__(self, settings, steps):
        self.s, self.alphas = settings, settings.alphas()
        k = settings.trained // settings.original
        origin = (np.arange(1, settings.original + 1) * k - 1)[::-1]
        at = np.floor(np.linspace(0, len(origin), num=steps, endpoint=False)).astype(int)
        self.timesteps = origin[at]

    def input(self, index, sample):
        return sample

    def step(self, index, output, sample, draw):
        t = int(self.timesteps[index])
        original, _ = self.s.original_and_noise(output, sample, self.alphas[t])
        scaled = t * 10.0
        skip, out = 0.25 / (scaled**2 + 0.25), scaled / math.sqrt(scaled**2 + 0.25)
        clean = out * original + skip * sample
        if index + 1 == len(self.timesteps):
            return clean
        a = self.alphas[int(self.timesteps[index + 1])]
        return math.sqrt(a) * clean + math.sqrt(1 - a) * draw()

    noised = Ddim.noised


class Pndm:
    scale = 1.0

    def __init__(self, settings, steps):
        self.s, self.steps, self.alphas = settings, steps, settings.alphas()
        t = settings.spaced("leading", steps)[::-1]
        self.timesteps = np.concatenate([t[:-1], t[-2:-1], t[-1:]])[::-1]
        self.known, self.counter = [], 0

    def input(self, index, sample):
        return sample

    def step(self, index, output, sample, draw):
        t = int(self.timesteps[index])
        ratio = self.s.trained // self.steps
        before = t - ratio
        if self.counter == 1:
            before, t = t, t + ratio
        else:
            self.known = self.known[-3:] + [output]
        e = self.known
        if len(e) == 1 and self.counter == 0:
            self.kept = sample
        elif len(e) == 1:
            output, sample = (output + e[-1]) / 2, self.kept
        elif len(e) == 2:
            output = (3 * e[-1] - e[-2]) / 2
        elif len(e) == 3:
            output = (23 * e[-1] - 16 * e[-2] + 5 * e[-3]) / 12
        else:
            output = (55 * e[-1] - 59 * e[-2] + 37 * e[-3] - 9 * e[-4]) / 24
        self.counter += 1
        a = self.alphas[t]
        last = 1.0 if self.s.to_one else self.alphas[0]
        a_before = self.alphas[before] if before >= 0 else last
        if self.s.prediction != "epsilon":
            output = math.sqrt(a) * output + math.sqrt(1 - a) * sample
        divisor = a * math.sqrt(1 - a_before) + math.sqrt(a * (1 - a) * a_before)
        return math.sqrt(a_before / a) * sample - (a_before - a) * output / divisor

    noised = Ddim.noised


KINDS = {
    "ddim": Ddim,
    "euler": Euler,
    "euler-a": EulerAncestral,
    "dpm++2m": Solver,
    "lcm": Lcm,
    "pndm": Pndm,
}


class Noise:
    """torch.randn of the processor's generator."""

    def __init__(self, seed):
        self.words = np.random.RandomState(seed)

    def units(self, count):
        words = np.frombuffer(self.words.bytes(4 * count), "<u4")
        return ((words & 0xFFFFFF) / np.float32(1 << 24)).astype(np.float32)

    def draw(self, count):
        assert count >= 16
        values = self.units(count)
        for at in range(0, count - 15, 16):
            values[at : at + 16] = self.pairs(values[at : at + 16])
        if count % 16:
            values[-16:] = self.pairs(self.units(16))
        return values

    @staticmethod
    def pairs(block):
        radius = np.sqrt(-2 * np.log(1 - block[:8].astype(np.float64)))
        angle = 2 * np.pi * block[8:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


SD = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
CASES = [
    (kind, dict(SD, steps_offset=1, clip_sample=False, set_alpha_to_one=False, prediction_type=prediction), 6)
    for kind in KINDS
    for prediction in ["epsilon", "v_prediction"]
] + [
    ("ddim", dict(), 5),
    ("ddim", dict(SD, timestep_spacing="trailing", clip_sample=True), 7),
    ("ddim", dict(SD, timestep_spacing="linspace"), 4),
    ("euler", dict(SD, timestep_spacing="leading", steps_offset=1), 5),
    ("euler-a", dict(SD, timestep_spacing="trailing"), 5),
    ("dpm++2m", dict(timestep_spacing="leading", steps_offset=1), 20),
    ("dpm++2m", dict(SD, timestep_spacing="trailing"), 5),
    ("pndm", dict(SD), 1),
    ("lcm", dict(SD, original_inference_steps=40), 4),
]


def walk(kind, settings, steps):
    """Outputs are made of the input alone, so both sides see the same network."""
    settings = Settings(**settings)
    sampler = KINDS[kind](settings, steps)
    noise = Noise(1)
    sample = noise.draw(16).astype(np.float64) * sampler.scale
    ramp = np.arange(16) / 16
    for index, t in enumerate(sampler.timesteps):
        output = 0.9 * sampler.input(index, sample) + 0.2 * ramp - t / 5000
        sample = sampler.step(index, output, sample, lambda: noise.draw(16).astype(np.float64))
    return sampler.timesteps, sample


if __name__ == "__main__":
    import json

    for kind, settings, steps in CASES:
        timesteps, sample = walk(kind, settings, steps)
        first = ", ".join(f"{t:.4f}" for t in (timesteps[0], timesteps[-1]))
        values = ", ".join(f"{v:.7f}" for v in sample[[0, 5, 10, 15]])
        print(f'    ("{kind}", r#"{json.dumps(settings)}"#, {steps}, [{first}], [{values}]),')
