//! Models of pictures against transformers, with the folders that `assets/reference/images.py`
//! writes: the image processors, float and int8 vectors, and mistakes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, safetensors};
use candle_dynquant::QConfigSpec;
use candle_dynquant_support::rows;
use dynquant_embed::{Embedder, ImageEmbedder, Options, Picture, Preset, normalized};
use tempfile::TempDir;

use crate::common::{check_int8, edited_at, quantized_by, refused};

mod common;

const MODELS: [&str; 7] =
    ["clip", "clip-old", "clip-vision", "siglip", "siglip-vision", "dinov2", "dinov2-registers"];

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference/images")
}

fn open(name: &str, preset: Option<Preset>) -> Result<ImageEmbedder> {
    let options = preset.into_iter().fold(Options::new(), Options::preset);
    ImageEmbedder::open_with(assets().join(name), options).with_context(|| name.to_owned())
}

/// The files of pictures, in the order of the expected values.
fn pictures() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(assets().join("pictures"))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn expected(name: &str, tensor: &str) -> Result<Tensor> {
    let all = safetensors::load(assets().join(name).join("expected.safetensors"), &Device::Cpu)?;
    let tensor = all.get(tensor).context("such a tensor")?;
    Ok(tensor.to_dtype(DType::F32)?)
}

fn is_jpeg(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "jpg")
}

/// A folder of a model, quantized before it is opened.
fn quantized(name: &str) -> Result<(TempDir, PathBuf)> {
    quantized_by(&assets().join(name), &QConfigSpec::int8())
}

fn embed(embedder: &ImageEmbedder, paths: &[PathBuf]) -> Result<Vec<Vec<f32>>> {
    let pictures: Vec<Picture<'_>> = paths.iter().map(|path| Picture::Path(path)).collect();
    embedder.embed(&pictures)
}

/// Pictures without loss have the values of torchvision; those of a JPEG depend on its decoder.
#[test]
fn pixels_are_those_of_transformers() -> Result<()> {
    for name in MODELS {
        let embedder = open(name, Some(Preset::NONE))?;
        let config = fs::read(assets().join(name).join("preprocessor_config.json"))?;
        let config: serde_json::Value = serde_json::from_slice(&config)?;
        let three = |key: &str| serde_json::from_value::<[f64; 3]>(config[key].clone());
        let (mean, std) = (three("image_mean")?, three("image_std")?);
        let pixels = expected(name, "pixels")?;
        for (index, path) in pictures()?.iter().enumerate() {
            let input = embedder.input(&Picture::Path(path))?;
            let pixels: Vec<f32> = pixels.get(index)?.flatten_all()?.to_vec1()?;
            ensure!(input.len() == pixels.len(), "{name}: {}", input.len());
            let difference = |(i, (x, pixel)): (usize, (&f32, &f32))| {
                let channel = i / (pixels.len() / 3);
                let value = f64::from(*x) * std[channel] + mean[channel];
                (value * 255. - f64::from(*pixel)).abs()
            };
            let all = input.iter().zip(&pixels).enumerate().map(difference);
            let all: Vec<f64> = all.collect();
            let most = all.iter().fold(0f64, |most, x| most.max(*x));
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let limits = if is_jpeg(path) { (3.01, 0.5) } else { (1e-4, 1e-4) };
            let place = format!("{name}, {}: max {most}, mean {mean}", path.display());
            ensure!(most < limits.0 && mean < limits.1, place);
        }
    }
    Ok(())
}

#[test]
fn vectors_equal_those_of_transformers() -> Result<()> {
    for name in MODELS {
        let embedder = open(name, Some(Preset::NONE))?;
        assert_eq!(embedder.notes(), [""; 0], "{name}");
        let expected: Vec<Vec<f32>> = expected(name, "vectors")?.to_vec2()?;
        assert_eq!(embedder.dimensions(), expected[0].len(), "{name}");
        let paths = pictures()?;
        let vectors = embed(&embedder, &paths)?;
        let max = expected.iter().flatten().fold(1f32, |max, x| max.max(x.abs()));
        for ((got, expected), path) in vectors.iter().zip(&expected).zip(&paths) {
            // The pixels of a JPEG differ.
            let limit = if is_jpeg(path) { 0.05 } else { 1e-4 };
            let far = got.iter().zip(expected).find(|(a, b)| (*a - *b).abs() > limit * max);
            ensure!(far.is_none(), "{name}, {}: {far:?}", path.display());
        }
    }
    Ok(())
}

#[test]
fn vectors_in_int8_are_near() -> Result<()> {
    for name in MODELS {
        let int8 = embed(&open(name, None)?, &pictures()?)?;
        check_int8(name, &expected(name, "vectors")?.to_vec2()?, &int8)?;
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_the_batch_nor_on_when_weights_were_quantized() -> Result<()> {
    let paths = pictures()?;
    for name in MODELS {
        for preset in [None, Some(Preset::NONE)] {
            let together = embed(&open(name, preset)?, &paths)?;
            let options = || preset.into_iter().fold(Options::new(), Options::preset);
            for size in [1, 3] {
                let options = options().batch_size(size);
                let other = ImageEmbedder::open_with(assets().join(name), options)?;
                assert_eq!(embed(&other, &paths)?, together, "{name}, batches of {size}");
            }
        }
        let (_dir, out) = quantized(name)?;
        let quantized = ImageEmbedder::open(out)?;
        assert_eq!(quantized.dtype(), "quantized", "{name}");
        let together = embed(&open(name, None)?, &paths)?;
        assert_eq!(embed(&quantized, &paths)?, together, "{name}, quantized before");
    }
    Ok(())
}

/// Checks that a picture behind another is refused with a text.
#[track_caller]
fn refuses(embedder: &ImageEmbedder, picture: Picture<'_>, expected: &str) {
    let ok = Picture::Rgb { pixels: &[7; 12], width: 2, height: 2 };
    refused(embedder.embed(&[ok, picture]), expected);
}

#[test]
fn hostile_pictures_are_refused() -> Result<()> {
    let embedder = open("clip", None)?;
    let read = |name: &str| fs::read(assets().join("pictures").join(name));
    let mut cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "picture 1: expected a PNG, JPEG or WebP picture"),
        (b"no picture".to_vec(), "expected a PNG, JPEG or WebP picture"),
        (b"GIF89a\x01\0\x01\0".to_vec(), "expected a PNG, JPEG or WebP picture"),
    ];
    for name in ["wide.png", "lossless.webp", "rotated.jpg"] {
        let bytes = read(name)?;
        for length in [bytes.len() / 2, 40, 12, 3] {
            cases.push((bytes[..length].to_vec(), "expected a PNG, JPEG or WebP picture"));
        }
    }
    let mut huge = read("wide.png")?;
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let crc = [0xe3, 0xe6, 0xa7, 0xb4];
    huge[29..33].copy_from_slice(&crc);
    cases.push((huge, "pixels, got 65536 x 65536"));
    for (bytes, expected) in cases {
        refuses(&embedder, Picture::Bytes(&bytes), expected);
    }
    let rgb = |pixels, width, height| Picture::Rgb { pixels, width, height };
    let long = vec![0; 3 * 4_000_000];
    for (picture, expected) in [
        (rgb(&[0; 5], 2, 1), "pixels: expected 2 x 1 x 3 values, got 5"),
        (rgb(&[], 0, 1), "expected a picture of 1 to 67108864 pixels, got 0 x 1"),
        (rgb(&[], usize::MAX, 2), "pixels, got 18446744073709551615 x 2"),
        (
            rgb(&long, 1, 4_000_000),
            "expected a picture of at most 67108864 pixels when it is resized, got 24 x 96000000",
        ),
        (Picture::Path(Path::new("/no/such.png")), "/no/such.png: expected a readable file"),
    ] {
        refuses(&embedder, picture, expected);
    }
    Ok(())
}

/// `folder | file | from | to | message`.
const MISTAKES: &str = r#"
clip | preprocessor_config.json | "resample": 3 | "resample": 1 | key "resample": expected 2 (bilinear) or 3 (bicubic), got 1
clip | preprocessor_config.json | "resample": 3 | "colour": 3 | key "colour": expected no such key, which may change answers, got 3
clip | preprocessor_config.json | CLIPImageProcessor | Siglip2ImageProcessor | key "image_processor_type": expected one of CLIPImageProcessor
clip | preprocessor_config.json | {"shortest_edge": 24} | {"longest_edge": 24} | key "size.longest_edge": expected no such key
clip | preprocessor_config.json | {"shortest_edge": 24} | {"width": 24} | key "size": expected shortest_edge, or height and width
clip | preprocessor_config.json | {"shortest_edge": 24} | 99999 | key "size": expected shortest_edge, or height and width, at most 4096, got 99999
clip | preprocessor_config.json | "do_center_crop": true | "do_center_crop": false | key "do_center_crop": expected true
clip | preprocessor_config.json | {"height": 24, "width": 24} | {"height": 24, "width": 25} | key "image_size": expected 24 x 25, as preprocessor_config.json says, got 24
clip | preprocessor_config.json | "do_normalize": true | "do_normalize": false | key "do_normalize": expected true, got false
clip | preprocessor_config.json | 0.26862954 | 0 | key "image_std": expected three numbers above 0
clip | preprocessor_config.json | [0.26862954 | [1, 0.26862954 | key "image_std": expected three numbers
clip | preprocessor_config.json | 0.00392156862745098 | -1 | key "rescale_factor": expected a number above 0
clip | config.json | "model_type": "clip", | "model_type": "siglip2", | key "model_type": expected one of clip, clip_vision_model, siglip
clip | config.json | "patch_size": 5 | "patch_size": 25 | key "patch_size": expected at most 24, the image_size, got 25
clip | config.json | "patch_size": 5 | "patch_size": 0 | key "patch_size": expected a positive integer
clip | config.json | "num_channels": 3 | "num_channels": 1 | key "num_channels": expected 3, got 1
clip | config.json | "vision_config": {" | "vision_config": 7, "x": {" | key "vision_config": expected an object, got 7
clip | config.json | "image_size": 24 | "image_size": [24, 24] | key "image_size": expected a positive integer
clip | config.json | "num_hidden_layers": 1, "patch | "num_hidden_layers": 2000000000, "patch | key "num_hidden_layers": expected at most
siglip | config.json | "vision_use_head": true | "vision_use_head": false | key "vision_use_head": expected true, got false
dinov2 | config.json | "use_swiglu_ffn": true | "use_swiglu_ffn": false | cannot find tensor
dinov2 | config.json | "mlp_ratio": 2 | "mlp_ratio": 2147483647 | key "mlp_ratio"
dinov2 | config.json | "num_hidden_layers": 2 | "num_hidden_layers": 1 | tensor "encoder.layer.1
"#;

#[test]
fn mistakes_in_files_are_named() -> Result<()> {
    for [name, file, from, to, expected] in rows(MISTAKES) {
        let dir = edited_at(&assets().join(name), file, [from, to])?;
        refused(ImageEmbedder::open(&dir), expected);
    }
    Ok(())
}

/// The form of `clip-ViT-B-32`, and the file in which newer releases nest the processor.
#[test]
fn folders_of_sentence_transformers_and_of_processors() -> Result<()> {
    let out = tempfile::tempdir()?;
    let below = out.path().join("0_CLIPModel");
    fs::create_dir_all(&below)?;
    for name in ["config.json", "model.safetensors"] {
        fs::copy(assets().join("clip").join(name), below.join(name))?;
    }
    let modules = r#"[{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]"#;
    fs::write(out.path().join("modules.json"), modules)?;
    let processor = fs::read_to_string(assets().join("clip/preprocessor_config.json"))?;
    // As older releases wrote sizes and the class.
    let processor = processor.replace(r#"{"height": 24, "width": 24}"#, "24");
    let processor = processor.replace(r#"{"shortest_edge": 24}"#, "24");
    let processor = processor.replace("CLIPImageProcessor", "CLIPFeatureExtractor");
    let processor = processor.replace("image_processor_type", "feature_extractor_type");
    let processor = format!("{{\"image_processor\": {processor}}}");
    fs::write(below.join("processor_config.json"), processor)?;
    let paths = pictures()?;
    let expected = embed(&open("clip", None)?, &paths)?;
    assert_eq!(embed(&ImageEmbedder::open(&out)?, &paths)?, expected);
    Ok(())
}

fn texts(name: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(assets().join(name).join("expected.json"))?;
    let all: serde_json::Value = serde_json::from_str(&text)?;
    Ok(serde_json::from_value(all["texts"].clone())?)
}

/// Vectors of texts, and the scores of texts and pictures, zero-shot: the cosine by the factor of
/// the weights, and in SigLIP a summand.
#[test]
fn texts_and_pictures_are_in_one_space() -> Result<()> {
    for name in ["clip", "clip-old", "siglip"] {
        let options = Options::new().preset(Preset::NONE);
        let embedder = Embedder::open_with(assets().join(name), options)?;
        assert_eq!(embedder.encoder().config.notes, [""; 0], "{name}");
        let texts = embedder.embed(&texts(name)?)?;
        let expected_texts: Vec<Vec<f32>> = expected(name, "texts")?.to_vec2()?;
        assert_eq!(embedder.dimensions(), expected_texts[0].len(), "{name}");
        let pairs = texts.iter().flatten().zip(expected_texts.iter().flatten());
        let far = { pairs }.find(|(a, b)| (*a - *b).abs() > 1e-4 * b.abs().max(1.));
        ensure!(far.is_none(), "{name}: {far:?}");

        let weights = assets().join(name).join("model.safetensors");
        let weights = safetensors::load(weights, &Device::Cpu)?;
        let number = |name: &str| match weights.get(name) {
            Some(number) => number.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>(),
            None => Ok(0.),
        };
        let (scale, bias) = (number("logit_scale")?.exp(), number("logit_bias")?);
        let paths = pictures()?;
        let pictures = embed(&open(name, Some(Preset::NONE))?, &paths)?;
        let logits: Vec<Vec<f32>> = expected(name, "logits")?.to_vec2()?;
        for ((picture, path), logits) in pictures.into_iter().zip(&paths).zip(&logits) {
            let picture = normalized(picture);
            // The pixels of a JPEG differ.
            let limit = if is_jpeg(path) { 2e-2 } else { 1e-4 };
            for (text, logit) in texts.iter().zip(logits) {
                let text = normalized(text.clone());
                let cosine: f32 = text.iter().zip(&picture).map(|(a, b)| a * b).sum();
                let got = cosine * scale + bias;
                ensure!((got - logit).abs() < limit * scale.max(1.), "{name}: {got}, {logit}");
            }
        }
    }
    Ok(())
}

#[test]
fn texts_of_towers_in_int8() -> Result<()> {
    for name in ["clip", "clip-old", "siglip"] {
        let texts = texts(name)?;
        let embedder = Embedder::open(assets().join(name))?;
        assert!(!embedder.encoder().model.is_one_by_one(), "{name}");
        let together = embedder.embed(&texts)?;
        check_int8(name, &expected(name, "texts")?.to_vec2()?, &together)?;
        let options = Options::new().batch_size(1);
        let alone = Embedder::open_with(assets().join(name), options)?.embed(&texts)?;
        assert_eq!(alone, together, "{name}");
        let (_dir, out) = quantized(name)?;
        assert_eq!(Embedder::open(out)?.embed(&texts)?, together, "{name}, quantized before");
        Embedder::open_with(assets().join(name), Options::new().equalize(&texts))?;
    }
    Ok(())
}
