//! Real models against PyTorch: all-MiniLM-L6-v2 and all-mpnet-base-v2.
//!
//! Each needs its model, 91 and 440 MB:
//!
//!     scripts/fetch_minilm.sh DIR; scripts/fetch_mpnet.sh DIR2
//!     DYNQUANT_MINILM=DIR DYNQUANT_MPNET=DIR2 cargo test --release -p dynquant-embed --test minilm
//!
//! A test without its variable passes at once. `assets/reference/minilm.py` and `mpnet.py` compute
//! the expected values.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::Device;
use dynquant_embed::{Embedder, Options, Preset};

#[test]
fn vectors_equal_those_of_pytorch() -> Result<()> {
    check("DYNQUANT_MINILM", "minilm.safetensors", "float_batched")
}

#[test]
fn vectors_of_mpnet_equal_those_of_pytorch() -> Result<()> {
    check("DYNQUANT_MPNET", "mpnet.safetensors", "float_alone")
}

/// Checks that the model of the folder in `variable` has the vectors of a fixture.
fn check(variable: &str, fixture: &str, tensor: &str) -> Result<()> {
    let Some(dir) = std::env::var_os(variable) else {
        return Ok(());
    };
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference");
    let sentences = fs::read_to_string(assets.join("minilm_sentences.txt"))?;
    let expected = candle_core::safetensors::load(assets.join(fixture), &Device::Cpu)?;
    let expected = expected.get(tensor).context("a tensor")?;
    let expected: Vec<Vec<f32>> = expected.to_vec2()?;
    let sentences: Vec<&str> = sentences.lines().take(expected.len()).collect();
    let size = expected.first().context("a vector")?.len();
    for (preset, bound) in [(Preset::NONE, 1e-5), (Preset::default(), 0.02)] {
        let embedder = Embedder::open_with(&dir, Options::new().preset(preset))?;
        // The fixture is normalized, whatever the folder says.
        let vectors = embedder.cut_to(size)?.embed(&sentences)?;
        assert_eq!(vectors.len(), expected.len());
        for (vector, expected) in vectors.iter().flatten().zip(expected.iter().flatten()) {
            assert!((vector - expected).abs() < bound, "{preset}: {vector}, {expected}");
        }
    }
    Ok(())
}
