//! all-MiniLM-L6-v2 against PyTorch: a model with its own tokenizer and weights.
//!
//! Needs the model, 91 MB:
//!
//!     scripts/fetch_minilm.sh DIR
//!     DYNQUANT_MINILM=DIR cargo test --release -p dynquant-embed --test minilm
//!
//! Without the variable the test passes at once. The expected values are made by
//! `assets/reference/minilm.py`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::Device;
use dynquant_embed::{Embedder, Options, Preset};

#[test]
fn vectors_equal_those_of_pytorch() -> Result<()> {
    let Some(dir) = std::env::var_os("DYNQUANT_MINILM") else {
        return Ok(());
    };
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference");
    let sentences = fs::read_to_string(assets.join("minilm_sentences.txt"))?;
    let sentences: Vec<&str> = sentences.lines().collect();
    let fixture = assets.join("minilm.safetensors");
    let expected = candle_core::safetensors::load(&fixture, &Device::Cpu)?;
    let expected = expected.get("float_batched").context("a tensor")?;
    let expected: Vec<Vec<f32>> = expected.to_vec2()?;
    for (preset, bound) in [(Preset::None, 1e-5), (Preset::Int8, 0.02)] {
        let embedder = Embedder::open_with(&dir, Options::new().preset(preset))?;
        // Normalized, as the fixture is, whatever the folder says.
        let vectors = embedder.cut_to(384)?.embed(&sentences)?;
        assert_eq!(vectors.len(), expected.len());
        for (vector, expected) in vectors.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (vector - expected).abs() < bound,
                "{preset}: {vector}, {expected}"
            );
        }
    }
    Ok(())
}
