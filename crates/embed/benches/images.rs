//! Seconds of 32 pictures in float and in int8, for `images.py`, which makes the model.
#![allow(missing_docs)]

use std::time::Instant;

use anyhow::Result;
use candle_dynquant_io::print;
use dynquant_embed::{ImageEmbedder, Options, Picture, Preset};
use mimalloc::MiMalloc;

/// The allocator of the programs.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    // Cargo adds arguments.
    let mut arguments = std::env::args().skip(1).filter(|it| !it.starts_with('-'));
    let (Some(folder), Some(calls)) = (arguments.next(), arguments.next()) else {
        print::note("run by crates/embed/benches/images.py");
        return Ok(());
    };
    let (side, count) = (224, 32);
    let pixel = |i: usize| ((i * 2_654_435_761) >> 7) as u8;
    let pixels: Vec<u8> = (0..count * side * side * 3).map(pixel).collect();
    let pictures = pixels.chunks_exact(side * side * 3);
    let pictures: Vec<Picture<'_>> =
        pictures.map(|pixels| Picture::Rgb { pixels, width: side, height: side }).collect();
    for preset in [Preset::NONE, Preset::default()] {
        let embedder = ImageEmbedder::open_with(&folder, Options::new().preset(preset))?;
        let inputs = pictures.iter().map(|picture| embedder.input(picture));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let [mut model, mut whole] = [f64::INFINITY; 2];
        let mut vectors = Vec::new();
        for _ in 0..calls.parse()? {
            let start = Instant::now();
            vectors = embedder.answer(&inputs)?;
            model = model.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            embedder.embed(&pictures)?;
            whole = whole.min(start.elapsed().as_secs_f64());
        }
        let name = preset.to_string();
        let row =
            serde_json::json!({"preset": name, "model": model, "whole": whole, "vectors": vectors});
        print::data(row)?;
    }
    Ok(())
}
