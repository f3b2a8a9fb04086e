#!/usr/bin/env python3
"""Tiny random models of pictures, with the answers of transformers.

    python images.py

Needs torch==2.9.1 torchvision==0.24.1 transformers==5.24.0 pillow==13.0.0. Writes pictures into images/pictures, and a
folder images/NAME for each model, keys.json with the keys that transformers knows, with weights in float16, and in it expected.safetensors: `pixels` u8
[pictures, 3, height, width], the picture as the processor resizes and cuts it, of `load_image`; `vectors` by
`get_image_features`, or the pooled output of a model without it. With texts, expected.json has `texts`, the
tensors `texts` their vectors by `get_text_features`, and `logits` the `logits_per_image`. All in float32, of the
weights as they are stored.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers as t
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers.image_utils import load_image

HERE = Path(__file__).resolve().parent / "images"
VISION = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
TEXT = VISION | dict(vocab_size=32, max_position_embeddings=12)
WORDS = "a photo of the cat dog river city snow bread market train on with two three red green blue sky".split()
TEXTS = ["a photo of a cat", "a photo of the red river", "snow", "two dog on the train with three bread of the blue sky"]
# The token that ends a text, within it.
TEXTS.append("a cat </s> on the train")


def gradient(width, height, seed):
    """Slow colours with some noise."""
    torch.manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = torch.stack([(5 * x + 3 * y + c).sin() * (4 * y - 2 * x * c).cos() for c in range(4)], -1)
    values = 128 + 100 * waves + 24 * torch.randn(height, width, 4)
    return values.clamp(0, 255).to(torch.uint8).numpy()


def pictures():
    folder = HERE / "pictures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rgb = lambda *args: Image.fromarray(gradient(*args)[..., :3].copy())
    rgb(61, 37, 1).save(folder / "wide.png")
    rgb(23, 70, 2).save(folder / "tall.png")
    Image.fromarray(gradient(40, 40, 3)).save(folder / "alpha.png")
    rgb(33, 50, 4).convert("L").save(folder / "gray.png")
    rgb(31, 29, 5).quantize(16).save(folder / "palette.png", transparency=3)
    rgb(9, 7, 6).save(folder / "small.png")
    rgb(45, 38, 7).save(folder / "lossless.webp", lossless=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    rgb(64, 40, 8).save(folder / "rotated.jpg", quality=92, exif=exif)
    return sorted(folder.iterdir())


def randomize(model, seed, scale):
    """Norms and biases that are not what they begin with; weights that float16 holds."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit_" in name:
                parameter.fill_(2.25 if "scale" in name else -1.5)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * scale)
            parameter.copy_(parameter.half().float())
    return model.eval()


def tokenizer(first, last):
    """Words to ids; the last token is the padding, too."""
    vocab = {word: i for i, word in enumerate(["<pad>", "<unk>", "<s>"] + WORDS + ["</s>"])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(s, vocab[s]) for s in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}".strip(), special_tokens=special)
    return t.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", pad_token="</s>", bos_token="<s>", eos_token="</s>",
        model_max_length=12, model_input_names=["input_ids"],
    )


def write(name, model, processor, files, seed, made=None, scale=0.2):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    randomize(model, seed, scale).save_pretrained(folder)
    processor.save_pretrained(folder)
    # As arrays, since PIL's pictures remember the transparent colour of a palette.
    images = [np.array(load_image(str(path))) for path in files]
    inputs = processor(images=images, return_tensors="pt")["pixel_values"]
    raw = type(processor)(**(processor.to_dict() | dict(do_normalize=False, do_rescale=False)))
    pixels = raw(images=images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        features = getattr(model, "get_image_features", model)(pixel_values=inputs)
        vectors = features.image_embeds if hasattr(features, "image_embeds") else features.pooler_output
        expected = dict(pixels=pixels, vectors=vectors, inputs=inputs[:1])
        if made is not None:
            made.save_pretrained(folder)
            tokens = made(TEXTS, padding="max_length", truncation=True, return_tensors="pt")
            both = model(pixel_values=inputs, **tokens)
            expected |= dict(
                texts=model.get_text_features(**tokens).pooler_output, logits=both.logits_per_image
            )
            (folder / "expected.json").write_text(json.dumps(dict(texts=TEXTS)) + "\n")
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    weights = {k: v.half() for k, v in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text())) + "\n")
    print(name, tuple(pixels.shape), tuple(vectors.shape))


def keys():
    """The keys that transformers knows in the files of these models."""
    towers = [t.CLIPTextConfig, t.CLIPVisionConfig, t.SiglipTextConfig, t.SiglipVisionConfig, t.Dinov2Config]
    towers.append(t.Dinov2WithRegistersConfig)
    of = lambda kinds: sorted(set().union(*({f.name for f in dataclasses.fields(k)} | set(k().to_dict()) for k in kinds)))
    processors = [t.CLIPImageProcessor, t.SiglipImageProcessor, t.BitImageProcessor]
    steps = set().union(*(set(k.valid_kwargs.__annotations__) | set(k().to_dict()) for k in processors))
    all = dict(towers=of(towers), pairs=of([t.CLIPConfig, t.SiglipConfig]), processors=sorted(steps))
    (HERE / "keys.json").write_text(json.dumps(all) + "\n")


def main():
    files = pictures()
    keys()
    clip = t.CLIPImageProcessor(size=dict(shortest_edge=24), crop_size=dict(height=24, width=24))
    siglip = t.SiglipImageProcessor(size=dict(height=26, width=26))
    vision = VISION | dict(image_size=24, patch_size=5)
    text = TEXT | dict(bos_token_id=2, eos_token_id=3 + len(WORDS), pad_token_id=1)
    config = t.CLIPConfig(text_config=text, vision_config=vision | dict(hidden_size=48, num_hidden_layers=1), projection_dim=24)
    write("clip", t.CLIPModel(config), clip, files, 100, tokenizer("<s>", "</s>"))
    # As before transformers 4.31: the text's vector is that of the largest token.
    small = dict(num_hidden_layers=1, intermediate_size=32)
    config = t.CLIPConfig(text_config=text | small | dict(eos_token_id=2), vision_config=vision | small, projection_dim=24)
    write("clip-old", t.CLIPModel(config), clip, files, 200, tokenizer("<s>", "</s>"))
    write("clip-vision", t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**vision, projection_dim=20)), clip, files, 300)
    config = t.SiglipConfig(text_config=text | dict(projection_size=48), vision_config=vision | dict(hidden_size=48, num_hidden_layers=1, image_size=26))
    write("siglip", t.SiglipModel(config), siglip, files, 400, tokenizer("", "</s>"), 0.12)
    bilinear = t.SiglipImageProcessor(size=dict(height=26, width=26), resample=2)
    config = t.SiglipVisionConfig(**vision | dict(image_size=26))
    write("siglip-vision", t.SiglipVisionModel(config), bilinear, files, 500)
    dino = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=24, patch_size=4)
    # Positions between those of training.
    bit = t.BitImageProcessor(size=dict(shortest_edge=26), crop_size=dict(height=20, width=28))
    write("dinov2", t.Dinov2Model(t.Dinov2Config(**dino, use_swiglu_ffn=True)), bit, files, 600)
    # Pictures smaller than what is cut out of them.
    bit = t.BitImageProcessor(size=dict(shortest_edge=19), crop_size=dict(height=24, width=24), resample=2)
    model = t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**dino, num_register_tokens=3))
    write("dinov2-registers", model, bit, files, 700)


if __name__ == "__main__":
    main()
