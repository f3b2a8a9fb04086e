//! Sizes of models and of their inputs.

use anyhow::Result;
use candle_core::{Device, Tensor};

pub struct Size {
    pub name: &'static str,
    pub hidden: usize,
    pub heads: usize,
    pub inner: usize,
    pub layers: usize,
    pub vocab: usize,
    pub batch: usize,
    pub len: usize,
}

const SIZES: [Size; 5] = [
    Size::of("small", [64, 4, 128], [2, 100], [2, 24]),
    Size::of("minilm", [384, 12, 1536], [6, 1000], [1, 128]),
    Size::of("minilm-16", [384, 12, 1536], [6, 1000], [1, 16]),
    Size::of("base", [768, 12, 3072], [12, 1000], [1, 128]),
    Size::of("base-16", [768, 12, 3072], [12, 1000], [1, 16]),
];

impl Size {
    const fn of(
        name: &'static str,
        [hidden, heads, inner]: [usize; 3],
        [layers, vocab]: [usize; 2],
        [batch, len]: [usize; 2],
    ) -> Self {
        Self { name, hidden, heads, inner, layers, vocab, batch, len }
    }

    pub fn named(name: &str) -> Result<&'static Self> {
        let names: Vec<_> = SIZES.iter().map(|size| size.name).collect();
        let found = SIZES.iter().find(|size| size.name == name);
        found.ok_or_else(|| anyhow::anyhow!("no size {name}: one of {}", names.join(", ")))
    }

    /// The size at which outputs are compared.
    pub fn small() -> &'static Self {
        &SIZES[0]
    }

    pub fn is_small(&self) -> bool {
        self.name == SIZES[0].name
    }

    /// The number of tokens for a decoder that has an encoder.
    pub fn few(&self) -> usize {
        self.len.min(6)
    }

    /// The number of layers of Whisper, which has no more.
    pub fn whisper_layers(&self) -> usize {
        self.layers.min(4)
    }

    /// The height and width of an image.
    pub fn side(&self) -> usize {
        if self.is_small() { 64 } else { 224 }
    }

    pub fn ids(&self, len: usize) -> candle_core::Result<Tensor> {
        let ids = (0..self.batch * len).map(|i| (i * 7 % self.vocab) as u32);
        Tensor::from_vec(ids.collect(), (self.batch, len), &Device::Cpu)
    }

    /// The mask, 1 for tokens; each text is 3 tokens shorter than the text before.
    pub fn mask(&self) -> candle_core::Result<Tensor> {
        let len = self.len;
        let mask = (0..self.batch * len).map(|i| u32::from(i % len + i / len * 3 < len));
        Tensor::from_vec(mask.collect(), (self.batch, len), &Device::Cpu)
    }
}
