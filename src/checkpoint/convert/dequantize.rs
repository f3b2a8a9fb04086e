//! Quantized checkpoints as floats.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

use super::blocks::BLOCK;
use crate::checkpoint::read::{Checkpoint, Entry, Opened, belongs};
use crate::checkpoint::write::{Contents, Output, Planned, Writer, rewrite};
use crate::error::Result;

/// Writes `source` with its quantized weights as f32, which any loader reads; attention is in
/// float32 then, too.
///
/// # Errors
/// When a scale is not finite and positive, or `out` cannot be written, is the source, or is a
/// folder with other files. Then nothing is changed.
pub fn dequantize(
    source: &Checkpoint,
    out: impl AsRef<Path>,
    progress: impl FnMut(u64),
) -> Result<()> {
    let source = &source.opened;
    let tensors = source.files.tensors();
    let tensors = tensors.map(|(name, _, entry)| (name, outputs(source, name, entry)));
    let contents = Contents {
        source,
        tensors: tensors.collect(),
        formats: BTreeMap::new(),
        views: BTreeMap::new(),
        attention: BTreeMap::new(),
        config: None,
    };
    rewrite(&contents, out.as_ref(), progress)
}

/// The output for a tensor of the source.
fn outputs<'a>(source: &'a Opened, name: &'a str, entry: &'a Entry) -> Vec<Output<'a>> {
    // The tensor has the elements of a view.
    let is_view = source.is_view(name);
    if is_view || !source.weights.contains_key(name) {
        let goes = is_view || belongs(&source.weights, name);
        return if goes { Vec::new() } else { vec![Output::Copied] };
    }
    let planned = Planned::new(name, Dtype::F32, &source.shape(name, entry));
    let write = move |to: &mut Writer<'_>| write(source, name, to);
    vec![Output::New(vec![planned], Box::new(write))]
}

fn write(source: &Opened, name: &str, to: &mut Writer<'_>) -> Result<()> {
    let values = source.floats(name)?;
    for chunk in values.chunks(BLOCK) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
        to.write(name, &bytes)?;
    }
    Ok(())
}
