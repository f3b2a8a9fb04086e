"""Times 32 pictures of ViT-B/32's sizes, ours in float and int8, against ONNX Runtime's float and dynamic int8,
alone and in fastembed.

    python crates/embed/benches/images.py [--threads N] [--calls N]

Needs torch, transformers, onnx, onnxruntime and fastembed. Makes a model with random weights in target/images, builds
the bench `images`, and prints a JSON object a line: pictures per second of the fastest call of the model, the same with
the image processor, of pictures that have the model's size, and the mean cosine to float.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
WORK = ROOT / "target/images"
COUNT, SIDE = 32, 224


def make():
    import torch
    import transformers as t
    from onnxruntime.quantization import QuantType, quantize_dynamic

    torch.manual_seed(0)
    WORK.mkdir(parents=True, exist_ok=True)
    model = t.CLIPVisionModelWithProjection(t.CLIPVisionConfig()).eval().requires_grad_(False)
    model.save_pretrained(WORK)
    t.CLIPImageProcessor().save_pretrained(WORK)
    model.set_attn_implementation("eager")
    pixels = torch.zeros(2, 3, SIDE, SIDE)
    names = dict(input_names=["pixel_values"], output_names=["embeds"], dynamic_axes={"pixel_values": {0: "n"}})

    class Embeds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixel_values):
            return self.model(pixel_values=pixel_values).image_embeds

    torch.onnx.export(Embeds().eval(), (pixels,), str(WORK / "model.onnx"), opset_version=17, dynamo=False, **names)
    quantize_dynamic(
        str(WORK / "model.onnx"), str(WORK / "int8.onnx"), weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"]
    )


def pixels():
    """The pictures of the bench, as the processor makes them."""
    values = np.arange(COUNT * SIDE * SIDE * 3, dtype=np.uint64) * np.uint64(2_654_435_761) >> np.uint64(7)
    images = (values & np.uint64(255)).astype(np.float32).reshape(COUNT, SIDE, SIDE, 3) / 255
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    return np.ascontiguousarray(((images - np.float32(mean)) / np.float32(std)).transpose(0, 3, 1, 2))


def fastembed(file, threads, calls):
    """The seconds of fastembed's fastest call, by its name of this model."""
    from fastembed import ImageEmbedding
    from PIL import Image

    values = np.arange(COUNT * SIDE * SIDE * 3, dtype=np.uint64) * np.uint64(2_654_435_761) >> np.uint64(7)
    pictures = [Image.fromarray(it) for it in (values & np.uint64(255)).astype(np.uint8).reshape(COUNT, SIDE, SIDE, 3)]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(WORK / file, Path(folder) / "model.onnx")
        shutil.copy(WORK / "preprocessor_config.json", folder)
        name = "Qdrant/clip-ViT-B-32-vision"
        model = ImageEmbedding(name, specific_model_path=folder, threads=threads, local_files_only=True)
        fastest = float("inf")
        for _ in range(calls):
            start = time.perf_counter()
            assert len(list(model.embed(pictures, batch_size=COUNT))) == COUNT
            fastest = min(fastest, time.perf_counter() - start)
    return fastest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    if not (WORK / "int8.onnx").exists():
        make()
    build = "cargo build --release --quiet --message-format=json --manifest-path apps/Cargo.toml --target-dir target"
    build = build.split() + "-p dynquant-embed --features images --bench images".split()
    lines = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    built = [json.loads(line) for line in lines]
    bench = next(it["executable"] for it in built if it.get("target", {}).get("name") == "images" and it.get("executable"))
    names = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
    environment = os.environ | {name: str(options.threads) for name in names}
    command = [bench, str(WORK), str(options.calls)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    sides = {f"ours {row['preset']}": (row["model"], np.array(row["vectors"])) for row in rows}
    whole = {f"ours {row['preset']}": COUNT / row["whole"] for row in rows}

    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    for name in ("model", "int8"):
        session = onnxruntime.InferenceSession(str(WORK / f"{name}.onnx"), settings, ["CPUExecutionProvider"])
        fastest, inputs = float("inf"), pixels()
        for _ in range(options.calls):
            start = time.perf_counter()
            (vectors,) = session.run(None, {"pixel_values": inputs})
            fastest = min(fastest, time.perf_counter() - start)
        side = f"onnxruntime {'float' if name == 'model' else name}"
        sides[side] = (fastest, vectors)
        whole[side] = COUNT / fastembed(f"{name}.onnx", options.threads, options.calls)
    reference = sides["onnxruntime float"][1]
    for name, (seconds, vectors) in sides.items():
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
        cosine = float(((vectors * reference).sum(1) / lengths).mean())
        row = {"side": name, "pictures_per_second": round(COUNT / seconds, 1), "cosine": round(cosine, 5)}
        print(json.dumps(row | {"with_processor": round(whole[name], 1)}))


if __name__ == "__main__":
    main()
